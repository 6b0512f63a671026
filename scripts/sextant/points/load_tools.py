"""Imports the results of other load tools as the folder of a characterization.

`TOOLS` has the tools; a file for each reads its results into `tool_run.ToolRun`, `tool_points`
makes points of them. What a tool does not report is null.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.whole_files import settle
from sextant.facts.gpu import profile_of_id
from sextant.facts.llm import SHIPPED as LLMS
from sextant.facts.slo import ALIKE, MAX_FAILED
from sextant.pages.words import percent, plural
from sextant.points.export import write_published
from sextant.points.folder_sheets import Description, read_points
from sextant.points.frame import COLUMNS, IDENTIFIERS, LENGTHS, LOAD
from sextant.points.tool_aiperf import read_aiperf
from sextant.points.tool_files import looks_like, read_results
from sextant.points.tool_genai_bench import read_genai_bench
from sextant.points.tool_guidellm import read_guidellm
from sextant.points.tool_inference_perf import read_inference_perf
from sextant.points.tool_llmd import read_llmd
from sextant.points.tool_points import Point, doubt_kinds, point_of
from sextant.points.tool_run import LoadTool, ResultFile
from sextant.points.tool_vllm import read_sglang, read_vllm


def _keys(*names: str) -> frozenset[str]:
    return frozenset(names)


TOOLS: dict[str, LoadTool] = {
    "vllm-bench": LoadTool(
        "the JSON of `vllm bench serve --save-result`",
        (_keys("model_id", "request_throughput", "completed"),),
        read_vllm,
    ),
    "sglang-bench": LoadTool(
        "the JSON lines of `python -m sglang.bench_serving --output-file`",
        (_keys("backend", "median_ttft_ms", "mean_e2e_latency_ms"),),
        read_sglang,
    ),
    "guidellm": LoadTool("guidellm's benchmarks.json", (_keys("benchmarks"),), read_guidellm),
    "aiperf": LoadTool(
        "AIPerf's profile_export_aiperf.json",
        (_keys("input_config", "request_throughput"), _keys("input_config", "was_cancelled")),
        read_aiperf,
    ),
    "genai-bench": LoadTool(
        "genai-bench's JSON of one level (<scenario>_…_num_concurrency_N_time_….json)",
        (_keys("aggregated_metrics", "individual_request_metrics"),),
        read_genai_bench,
    ),
    "inference-perf": LoadTool(
        "inference-perf's stage_N_lifecycle_metrics.json",
        (_keys("load_summary", "successes", "failures"),),
        read_inference_perf,
    ),
    "llm-d": LoadTool(
        "a benchmark report of llm-d-benchmark (YAML or JSON, version 0.2 or 0.1)",
        (_keys("version", "scenario", "results"), _keys("version", "scenario", "metrics")),
        read_llmd,
    ),
}
"""The load tools whose results are read, by the name that the command takes."""


@dataclass(frozen=True)
class MeasuredSetup:
    """What was measured; the files of load tools do not say it."""

    gpu_profile_id: str
    llm: str | None = None  # name on Hugging Face; by default the one in the files
    engine: str | None = None
    engine_version: str | None = None


def import_load_tool(
    tool: str, files: Sequence[Path], out: Path, served: MeasuredSetup, configs: str | None = None
) -> str:
    """Write results of a tool, a key of `TOOLS`, as the folder of a characterization.

    Returns a line of counts. `configs` is as of `write_published`, by default the configurations
    that ship. InputError: the file is not the tool's; it names no LLM, or an LLM without a config;
    the profile is unknown; no result has users or a rate.
    """
    profile_of_id(served.gpu_profile_id)  # refuse an unknown profile before reading
    configs = configs or os.path.relpath(LLMS, out)
    rows = [row for path in files for row in _rows(tool, path, served.llm)]
    results = pd.DataFrame([row for row, _ in rows])
    results = results.reindex(columns=[*dict.fromkeys([*results, *COLUMNS])])
    points = results[results[LOAD].notna().any(axis=1)].reset_index(drop=True)
    left_out = [reason for row, reason in rows if not {*LOAD} & row.keys()]
    if points.empty:
        fix = "measure with a limit of requests in flight, or at a finite rate that is answered"
        problem = "no result has users or a rate"
        reason = f": {left_out[0]}" if left_out and left_out[0] else ""
        raise InputError(f"{problem}{reason}", file=files[0], fix=fix)

    for name in ("engine", "engine_version"):
        if getattr(served, name):
            points[name] = None  # the description has it for all of them
    points["gpu_profile_id"] = served.gpu_profile_id
    points, statistic = _without_lonely(points)
    about = _description(tool, points, served, statistic)
    notes = [*_left_out_notes(left_out), *_point_notes(points), *_replaced_notes(out, points)]
    return write_published(out, about, points, configs, len(results), notes)


def _rows(tool: str, path: Path, llm: str | None) -> Iterator[tuple[Point, str | None]]:
    """Yield the points of a file, each with why it has neither users nor a rate."""
    reader = TOOLS[tool]
    fix = f"give {reader.file}"
    rows: list[tuple[Point, str | None]] = []
    results = read_results(path, fix)
    if not results:
        raise InputError(f"was not written by {tool}: it is empty", file=path, fix=fix)
    for result in results:
        if not reader.is_of(result.content):
            raise _other_file(tool, result, fix)
        for run in _runs(tool, reader, result, fix):
            number = len(rows) + 1
            of_result = "" if number == 1 else f" (result {number})"
            point = point_of(run, result, llm, of_result)
            version = run.tool_version or "of unknown version"
            point["run_id"] = f"{tool} {version}: {path.name}"
            rows.append((point, run.load.no_level))
    if not rows:
        raise InputError(f"is a result of {tool} without any benchmark", file=path, fix=fix)
    for number, (point, _) in enumerate(rows, 1):
        point["run_id"] += f" {number}" * (len(rows) > 1)
    yield from rows


def _runs(tool: str, reader: LoadTool, result: ResultFile, fix: str) -> Iterator[Any]:
    """Yield the runs of a result; InputError: it was not written by the tool."""
    try:
        yield from reader.read(result)
    except InputError as error:
        raise error.at(file=result.path) from None
    except KeyError as error:
        problem = f"was not written by {tool}: it has no {error}"
        raise InputError(problem, file=result.path, fix=fix) from None
    except (TypeError, AttributeError, IndexError, ArithmeticError, ValueError):
        raise InputError(f"was not written by {tool}", file=result.path, fix=fix) from None


def _other_file(tool: str, result: ResultFile, fix: str) -> InputError:
    """Return the error of a file that the tool did not write: what it looks like, and what to do.

    That is a result of another tool, a file that this project knows, or neither.
    """
    problem = f"was not written by {tool}"
    others = [name for name, other in TOOLS.items() if other.is_of(result.content)]
    if others:
        problem += f": it looks like a result of {others[0]}"
        fix = f"`sextant import-characterization {others[0]} --from {result.path.name} …`"
    elif known := looks_like(result.content):
        problem += f": it looks like {known[0]}"
        fix = known[1]
    elif isinstance(result.content, dict) and result.content:
        missing = min((m - result.content.keys() for m in TOOLS[tool].marks), key=len)
        problem += f": it has no {', '.join(map(repr, sorted(missing)))}"
    return InputError(problem, file=result.path, fix=fix)


def _without_lonely(points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return points of one statistic: means without medians are left out, unless all have means."""
    means = [name for name in points if name.startswith("mean_")]
    pairs = {name: name.replace("mean_", "median_") for name in means}
    lacks = {
        of: points[name].isna() & points[of].notna() for name, of in pairs.items() if of in points
    }
    is_lonely = {
        name: points[name].notna() & (points[of].isna() if of in points else True)
        for name, of in pairs.items()
    }
    if any(rows.any() for rows in is_lonely.values()) and not any(
        rows.any() for rows in lacks.values()
    ):
        return points, "mean"
    for name, rows in is_lonely.items():
        points[name] = points[name].mask(rows)
    return points, "median"


def _description(
    tool: str, points: pd.DataFrame, served: MeasuredSetup, statistic: Any
) -> Description:
    engine = {name: getattr(served, name) for name in ("engine", "engine_version")}
    return Description(
        source=f"own:{tool}",
        licence="not stated",
        attribution=f"measured with {tool}",
        statistic=statistic,
        load="closed_loop" if points["users"].notna().all() else "rate",
        # Points of one workload share its lengths; those of several have each their own.
        lengths="fixed" if _has_several_lengths(points) else "varying",
        defaults={name: value for name, value in engine.items() if value},
    )


def _has_several_lengths(points: pd.DataFrame) -> bool:
    """Return whether the requests of some points are much longer than those of others."""
    lengths = points[LENGTHS].astype(float)
    return bool((lengths.max() > ALIKE * lengths.min()).any())


def _replaced_notes(out: Path, points: pd.DataFrame) -> list[str]:
    """Return how many points of other files are replaced in a folder that was imported before.

    Raises InputError: points of other LLMs or GPU profiles are there, which would be lost.
    """
    settle(out)
    if not (out / "points.csv").is_file():
        return []
    earlier = read_points(out / "points.csv").reindex(columns=[*IDENTIFIERS, "run_id"])
    llm_ids = points["model"].str.replace("/", "__", regex=False)
    is_other = ~earlier["gpu_profile_id"].isin(points["gpu_profile_id"])
    is_other |= ~earlier["llm_id"].isin(llm_ids)
    if is_other.any():
        first = earlier[is_other].iloc[0]
        problem = (
            f"{plural(int(is_other.sum()), 'point')} would be lost, the first of "
            f"{first['llm_id']} on {first['gpu_profile_id']}"
        )
        fix = "give another folder; questions take several (--source FOLDER --source FOLDER)"
        raise InputError(problem, file=out, field="--out", fix=fix)
    n_replaced = int((~earlier["run_id"].isin(points["run_id"])).sum())
    return [f"{plural(n_replaced, 'earlier point')} of other files replaced"] if n_replaced else []


def _left_out_notes(reasons: Sequence[str | None]) -> list[str]:
    """Return how many results have no level, and why."""
    if not reasons:
        return []
    named = dict.fromkeys(filter(None, reasons))
    why = f" ({'; '.join(named)})" if named else ""
    return [f"{len(reasons)} left out, with neither users nor a rate{why}"]


def _point_notes(points: pd.DataFrame) -> list[str]:
    """Return what no SLO can rest on, and which doubts the points have."""
    n_ok, n_failed = (points[name].astype(float) for name in ("n_ok", "n_failed"))
    failed = n_failed / (n_ok + n_failed)
    many_failed = f"with more than {percent(MAX_FAILED)} of the requests failed (up to "
    many_failed += f"{percent(failed.max())}), which meet no SLO unless --max-failed allows it"
    rows_by_note = {many_failed: failed > MAX_FAILED}
    is_one_token = points["output_tokens"].astype(float) <= 1
    lacks = {
        "TTFT": points["median_ttft_ms"].isna() & points["mean_ttft_ms"].isna(),
        "TPOT": points[["median_tpot_ms", "mean_tpot_ms"]].isna().all(axis=1) & ~is_one_token,
    }
    for name, rows in lacks.items():
        rows_by_note[f"without a median {name}"] = rows & ~(n_ok == 0)
    rows_by_note["without a TPOT: answers of one token"] = is_one_token
    notes = [f"{rows.sum()} {note}" for note, rows in rows_by_note.items() if rows.any()]

    doubts = points["doubt"].dropna()
    kinds = pd.Series([kind for doubt in doubts for kind in doubt_kinds(doubt)], dtype=object)
    if len(doubts):
        counts = ", ".join(f"{kind} {n}" for kind, n in kinds.value_counts(sort=False).items())
        notes.append(f"{len(doubts)} doubtful, see the column doubt ({counts})")
    return notes

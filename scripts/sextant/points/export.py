"""Writes folders of characterizations: of own points, or of other load tools' results.

What a tool does not report is null. guidellm and AIPerf call the mean gap of each request ITL: it
becomes TPOT.
"""

import csv
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import atomic_folder, atomic_path, read_json
from sextant.base.resources import resource
from sextant.base.sheets import check_fields, file_name, load_sheet, write_yaml
from sextant.experiment.sheets import LlmRow
from sextant.facts.gpu import GPUS, gpu_path, priced, profile_of_id, profile_row
from sextant.facts.slo import MAX_FAILED
from sextant.pages.words import percent
from sextant.points import characterization, frame
from sextant.points.characterization import FILE, Characterization, Description, PointRow
from sextant.points.frame import COLUMNS, IDENTIFIERS, LOAD, STATISTICS
from sextant.points.verdict import OUTCOMES, ProbeOutcome, status_of

_ORDER = [*IDENTIFIERS, *frame.SERVING, *LOAD, *frame.LENGTHS, "measured_on", "run_id"]
_MS_PER = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_WITHOUT_ANSWERS = ("users", "n_ok", "n_failed", "measured_on")  # where every request failed
LLMS = resource("llms")
Point = dict[str, Any]


def export_folder(
    known: Characterization,
    out: Path,
    *,
    llms: Path,
    licence: str | None = None,
    attribution: str | None = None,
) -> int:
    """Write measured points and what they refer to as a folder; return their number. A
    `characterization.yaml` and an `llms.tsv` that are there stay; without the former, licence and
    attribution are needed. `llms` is the sheet of the LLMs' configurations, which are copied."""
    points, tried = known.points, known.feasibility.sort_values(IDENTIFIERS)
    about = None
    if not (out / FILE).is_file():
        if not licence or not attribution:
            fix = "say under which licence the points are, and who measured them"
            problem = f"{out} has no {FILE} yet"
            raise InputError(problem, field="--licence, --attribution", fix=fix)
        about = Description(
            source=known.source,
            licence=licence,
            attribution=attribution,
            statistic="median",
            load="closed_loop" if points["users"].notna().all() else "rate",
            lengths="varying",
            memory_utilization=known.memory_utilization,
            longest_request_tokens=known.longest_request_tokens,
            workload_id=known.workload_id,
            scenario_id=known.scenario_id,
        )
    named = {*points["gpu_profile_id"], *tried["gpu_profile_id"]}
    profiles = [profile_row(profile) for name, profile in known.profiles.items() if name in named]
    with atomic_folder(out, last=FILE) as new:
        if about is not None:
            write_description(new, about)
        if not (out / "llms.tsv").is_file():
            write_table(new / "llms.tsv", pd.DataFrame(_copied_llms(known, new, llms)))
        for profile in known.profiles.values():
            gpu = profile.gpu
            if not gpu_path(GPUS, gpu.gpu_id).is_file():
                facts = {key: value for key, value in asdict(gpu).items() if value is not None}
                write_yaml(gpu_path(new / "gpus", gpu.gpu_id), facts)
        write_table(new / "gpu_profiles.tsv", pd.DataFrame(profiles))
        status = tried["verdict"].map(lambda verdict: status_of(ProbeOutcome(verdict)))
        rows = tried[IDENTIFIERS].assign(status=status, reason=tried["reason"])
        # Only where the status does not say it.
        more = tried["verdict"].mask(tried["verdict"] == status.map(OUTCOMES))
        rows = rows.assign(verdict=more) if more.notna().any() else rows
        write_table(new / "feasibility.csv", rows)
        # No store has it: `complete` computes it from others.
        write_points(new / "points.csv", points.drop(columns=["mean_nttft_ms"]))
    return len(points)


def _copied_llms(known: Characterization, out: Path, sheet: Path) -> Iterator[dict[str, str]]:
    configs = {row["llm_id"]: row["config"] for row in load_sheet(sheet, LlmRow, "llm_id")}
    (out / "llms").mkdir()
    for llm_id in sorted(known.points["llm_id"].unique()):
        if llm_id not in configs:
            fix = "add a row for it, or give another sheet (--llms)"
            raise InputError(f"no LLM {llm_id!r}", file=sheet, field="llm_id", fix=fix)
        name = f"llms/{file_name(llm_id)}.json"
        shutil.copyfile(configs[llm_id], out / name)
        yield {"llm_id": llm_id, "config": name, "dtype": known.llms[llm_id].dtype}


def write_description(folder: Path, about: Description) -> None:
    """Write `characterization.yaml`, without what is not known."""
    facts = {key: value for key, value in asdict(about).items() if value not in (None, {})}
    write_yaml(folder / FILE, facts)


def write_points(path: Path, points: pd.DataFrame) -> None:
    """Write those columns of points that have a value, intervals last, sorted."""
    columns = [*COLUMNS, *frame.INTERVAL_COLUMNS]
    named = [name for name in columns if name in points and points[name].notna().any()]
    order = [name for name in _ORDER if name in named]
    write_table(path, points[named].sort_values(order, kind="stable", na_position="first"))


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """Write a table, its numbers in the fewest digits that give them back; `.tsv` has tabs."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(rows.columns)
        for row in rows.itertuples(index=False):
            texts = [_text(value) for value in row]
            # Without quotes the line would be a comment.
            (quoting if texts[0].startswith("#") else writer).writerow(texts)


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(float(value))
    return str(value)


@dataclass(frozen=True)
class MeasuredSetup:
    """What was measured, where the files do not say it."""

    gpu_profile_id: str
    llm: str | None = None  # name on Hugging Face; by default the one in the files
    engine: str | None = None
    engine_version: str | None = None


def import_load_tool(
    tool: str, files: Sequence[Path], out: Path, served: MeasuredSetup, configs: str | None = None
) -> str:
    """Write results of a tool, a key of `TOOLS`, as the folder of a characterization; return the
    counts. `configs` as of `write_published`, by default what ships. InputError: not the tool's
    file, no LLM or none with a config, an unknown profile, or no users and no answered rate."""
    profile_of_id(served.gpu_profile_id)
    configs = configs or os.path.relpath(LLMS, out)
    results = pd.DataFrame([row for path in files for row in _rows(tool, path, served.llm)])
    results = results.reindex(columns=[*dict.fromkeys([*results, *LOAD])])
    points = results[results[LOAD].notna().any(axis=1)].reset_index(drop=True)
    if points.empty:
        fix = "measure with a limit of requests in flight, or at a finite rate that is answered"
        raise InputError("no result has users or an answered rate", file=files[0], fix=fix)
    engine = {name: getattr(served, name) for name in ("engine", "engine_version")}
    about = Description(
        source=f"own:{tool}",
        licence="not stated",
        attribution=f"measured with {tool}",
        statistic="median",
        load="closed_loop" if points["users"].notna().all() else "rate",
        lengths="varying",
        defaults={name: value for name, value in engine.items() if value},
    )
    n_without = len(results) - len(points)
    notes = [f"{n_without} left out, with neither users nor a rate"] * (n_without > 0)
    needed = ("n_ok", "n_failed", "median_ttft_ms", "median_tpot_ms")
    n_ok, n_failed, *medians = (points.get(name, points["users"] * math.nan) for name in needed)
    failed = n_failed / (n_ok + n_failed)
    said = f"with more than {percent(MAX_FAILED)} of the requests failed (up to "
    said += f"{percent(failed.max())}), which meet no SLO unless --max-failed allows it"
    counts = {said: failed > MAX_FAILED}
    for name, median in zip(("TTFT", "TPOT"), medians, strict=True):
        counts[f"without a median {name}"] = median.isna() & (n_ok > 0)
    notes += [f"{count.sum()} {said}" for said, count in counts.items() if count.any()]
    points["gpu_profile_id"] = served.gpu_profile_id
    return write_published(out, about, points, configs, len(results), notes)


def write_published(
    out: Path,
    about: Description,
    points: pd.DataFrame,
    configs: str,
    n_read: int,
    notes: Sequence[str] = (),
) -> str:
    """Write the folder of a characterization, where other files stay, without LLMs that have no
    `<llm_id>.json` in `configs` (relative to `out`); return the counts and `notes`, of `n_read`
    measurements. `points` have the LLM's name on Hugging Face, `model`; `/` is `__` in an id.
    InputError: no LLM is left, or a GPU profile is unknown."""
    folder = (out / configs).resolve()  # `out` need not be there yet
    points = points.assign(llm_id=points["model"].str.replace("/", "__", regex=False))
    is_known = points["llm_id"].map(lambda name: (folder / f"{name}.json").is_file()).astype(bool)
    if not is_known.any():
        fix = f"save it as {points['llm_id'].iloc[0]}.json there, or name the LLM (--llm) or "
        fix += "another folder"
        problem = f"no config.json of {points['model'].iloc[0]}"
        raise InputError(problem, file=folder, field="--configs", fix=fix)
    unknown = points.loc[~is_known, "model"].value_counts().sort_index()
    points = points[is_known]
    llm_ids = sorted(points["llm_id"].unique())
    profiles = [profile_of_id(name) for name in points["gpu_profile_id"].unique()]
    profiles.sort(key=lambda each: (each.gpu.gpu_id, each.n_gpus))
    llms = [{"llm_id": name, "config": f"{configs}/{name}.json"} for name in llm_ids]
    # The publishers state no prices.
    rows = [profile_row(priced(each, "aws") or each) for each in profiles]
    with atomic_folder(out, last=FILE) as new:
        write_description(new, about)
        write_table(new / "llms.tsv", pd.DataFrame(llms))
        write_table(new / "gpu_profiles.tsv", pd.DataFrame(rows))
        write_points(new / "points.csv", points)
    left_out = [f"{n} left out of {name}, without a config.json" for name, n in unknown.items()]
    return "; ".join([f"{len(points):,} points of {n_read:,} measurements", *notes, *left_out])


def _rows(tool: str, path: Path, llm: str | None) -> list[Point]:
    name, read = TOOLS[tool]
    fix = f"give {name}"
    content, rows = read_json(path, fix=fix), []
    try:
        for number, point in enumerate(read(content), 1):
            version = point.pop("version", None) or "of unknown version"
            of_result = "" if number == 1 else f" (result {number})"
            row = _checked(point, llm, path, of_result)
            rows.append(row | {"run_id": f"{tool} {version}: {path.name}"})
    except InputError as error:
        raise error.at(file=path) from None
    except KeyError as error:
        problem = f"was not written by {tool}: it has no {error}"
        raise InputError(problem, file=path, fix=fix) from None
    except (TypeError, AttributeError, IndexError, ArithmeticError, ValueError):
        raise InputError(f"was not written by {tool}", file=path, fix=fix) from None
    if not rows:
        raise InputError(f"is a result of {tool} without any benchmark", file=path, fix=fix)
    for number, row in enumerate(rows, 1):
        row["run_id"] += f" {number}" * (len(rows) > 1)
    return rows


def _checked(point: Point, llm: str | None, path: Path, of_result: str) -> Point:
    """Return what is known of a result, with its `model`; InputError for a wrong value."""
    model, (field, day) = llm or point.pop("model"), point.pop("day")
    asked, served = point.pop("asked_rps"), point.pop("request_rate_rps")
    # Users, or the rate that was asked for; neither where everything was sent at once.
    users = point.pop("users") if asked is None else None
    point |= {"users": users, "request_rate_rps": served if users is not None else asked}
    known = {k: v for k, v in point.items() if v is not None and v == v and k != "model"}
    if day is not None:
        try:
            written = day if day.isdigit() else day[:10]
            known["measured_on"] = date.fromisoformat(written).isoformat()
        except (AttributeError, ValueError):
            fix = f"correct {field}, or measure again"
            raise InputError(f"{str(day)[:40]!r} is no date", field=field, fix=fix) from None
    if known.get("n_ok") == 0:  # tools write 0 for what nothing was measured of
        known = {name: known[name] for name in known if name in _WITHOUT_ANSWERS}
    for name in ("n_ok", "n_failed", "users"):
        if isinstance(known.get(name), float) and known[name].is_integer():
            known[name] = int(known[name])
    try:
        check_fields(PointRow, known | {"llm_id": "", "gpu_profile_id": ""}, path)
        characterization.check_latencies(pd.DataFrame([known]).reindex(columns=COLUMNS))
    except InputError as error:
        where, fix = f"{error.field}{of_result}", f"correct {error.field}, or measure again"
        raise InputError(error.problem, file=path, field=where, fix=fix) from None
    if not isinstance(model, str) or not model:
        fix = "name the LLM: --llm, as on Hugging Face"
        raise InputError("the file does not name the LLM", file=path, field="--llm", fix=fix)
    # The points' statistic is the median: a mean alone would not be read.
    lonely = {name for name in known if name.replace("mean_", "median_") not in known}
    return {name: value for name, value in known.items() if name not in lonely} | {"model": model}


def _vllm(result: Any) -> Iterator[Point]:
    n_ok, rate = result["completed"], result["request_rate"]
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    yield {
        "model": result["model_id"],
        "users": result["max_concurrency"],
        "asked_rps": None if rate == "inf" else rate,
        "request_rate_rps": result["request_throughput"],
        "input_tokens": result["total_input_tokens"] / n_ok if n_ok else None,
        "output_tokens": result["total_output_tokens"] / n_ok if n_ok else None,
        **{
            f"{each}_{ours}_ms": result.get(f"{each}_{theirs}_ms")
            for ours, theirs in names.items()
            for each in STATISTICS
        },
        "throughput_tok_s": result["output_throughput"],
        "n_ok": n_ok,
        "n_failed": result.get("failed", result["num_prompts"] - n_ok),
        "day": ("date", f"{result['date']}".partition("-")[0]),
    }


def _guidellm(report: Any) -> Iterator[Point]:
    version = report.get("metadata", {}).get("guidellm_version")
    for result in report["benchmarks"]:
        metrics, config = result["metrics"], result.get("config") or result["args"]
        strategy, totals = config["strategy"], metrics["request_totals"]
        is_alone = strategy["type_"] == "synchronous"
        # By column: its name there, and milliseconds of its unit.
        latencies = {
            "ttft": ("time_to_first_token_ms", 1.0),
            "tpot": ("inter_token_latency_ms", 1.0),
            "e2e": ("request_latency", 1e3),
        }
        point: Point = {}
        for ours, (theirs, ms) in latencies.items():
            block = metrics[theirs]["successful"] or {}
            point |= _latencies(ours, {**block, **block.get("percentiles", {})}, ms)
        means = {
            "input_tokens": "prompt_token_count",
            "output_tokens": "output_token_count",
            "throughput_tok_s": "output_tokens_per_second",
            "request_rate_rps": "requests_per_second",
        }
        try:
            day = datetime.fromtimestamp(result["start_time"], UTC).isoformat()
        except (TypeError, ValueError, ArithmeticError, OSError):
            day = result["start_time"]
        yield point | {
            **{ours: (metrics[it]["successful"] or {}).get("mean") for ours, it in means.items()},
            "model": _only(config, "model") or _only(report | {"benchmarks": []}, "model"),
            "version": version,
            "users": 1 if is_alone else strategy.get("streams") or strategy.get("max_concurrency"),
            "asked_rps": strategy.get("rate"),
            "n_ok": totals["successful"],
            "n_failed": totals["errored"],
            "day": ("start_time", day),
        }


def _aiperf(result: Any) -> Iterator[Point]:
    config = result["input_config"]
    models = _only(config, "model_names") or _only(config, "model")
    means = {
        "input_tokens": "input_sequence_length",
        "output_tokens": "output_sequence_length",
        "throughput_tok_s": "output_token_throughput",
    }
    latencies = {
        "ttft": result.get("time_to_first_token"),
        "tpot": result.get("inter_token_latency"),
        "e2e": result["request_latency"],
    }
    point: Point = {}
    for name, block in latencies.items():
        if block is not None:  # answers that did not stream have E2E alone
            if block["unit"] not in _MS_PER:
                fix = f"one of {', '.join(_MS_PER)} is known"
                raise InputError(f"unknown unit {block['unit']!r}", field=name, fix=fix)
            renamed = {**block, "mean": block.get("avg"), "median": block.get("p50")}
            point |= _latencies(name, renamed, _MS_PER[block["unit"]])
    yield point | {
        **{ours: result.get(theirs, {}).get("avg") for ours, theirs in means.items()},
        "model": models[0] if isinstance(models, list) else models,
        "version": result.get("aiperf_version"),
        "users": _only(config, "concurrency"),
        "asked_rps": _only(config, "request_rate"),
        "request_rate_rps": result["request_throughput"]["avg"],
        "n_ok": result["request_count"]["avg"],
        "n_failed": result.get("error_request_count", {}).get("avg", 0),
        "day": ("start_time", result.get("start_time")),
    }


def _latencies(name: str, block: Mapping[str, Any], ms: float) -> Point:
    values = {each: block.get(each) for each in STATISTICS}
    return {
        f"{each}_{name}_ms": value if value is None or ms == 1 else value * ms
        for each, value in values.items()
    }


def _only(config: Any, name: str) -> Any:
    """Return a key's one value at any depth, None without; InputError for several."""
    values: list[Any] = []

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get(name), str | int | float | list) and part[name] not in values:
                values.append(part[name])
            part = list(part.values())
        for each in part if isinstance(part, list) else ():
            visit(each)

    visit(config)
    if len(values) > 1:
        fix = "give a result of a single phase"
        raise InputError(f"several values of {name}: {values[:3]}", field=name, fix=fix)
    return values[0] if values else None


TOOLS: dict[str, tuple[str, Callable[[Any], Iterator[Point]]]] = {
    "vllm-bench": ("the JSON of `vllm bench serve --save-result`", _vllm),
    "guidellm": ("guidellm's benchmarks.json", _guidellm),
    "aiperf": ("AIPerf's profile_export_aiperf.json", _aiperf),
}

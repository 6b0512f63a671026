"""Reads the results of other load tools: vLLM's benchmark, guidellm and AIPerf.

They become the folder of a characterization. What a tool does not report is null. guidellm and
AIPerf call the mean gap of each request ITL: it becomes TPOT.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.base.sheets import check_fields
from sextant.facts.gpu import profile_of_id
from sextant.facts.llm import SHIPPED as LLMS
from sextant.facts.slo import MAX_FAILED
from sextant.pages.words import percent
from sextant.points.export import write_published
from sextant.points.folder_sheets import Description, PointRow, check_latencies
from sextant.points.frame import COLUMNS, LOAD, STATISTICS

_MS_PER = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_WITHOUT_ANSWERS = (
    "users",
    "n_ok",
    "n_failed",
    "measured_on",
)  # columns of a result whose requests all failed
Point = dict[str, Any]
"""A result by column of points.csv; and `model`, `version`, `day` (its field and value) and
`asked_rps`, the rate that was asked for."""


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
    the profile is unknown; no result has users or an answered rate.
    """
    profile_of_id(served.gpu_profile_id)  # refuse an unknown profile before reading
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

    notes = []
    if n_left_out := len(results) - len(points):
        notes.append(f"{n_left_out} left out, with neither users nor a rate")
    needed = ("n_ok", "n_failed", "median_ttft_ms", "median_tpot_ms")
    n_ok, n_failed, *medians = (points.get(name, points["users"] * math.nan) for name in needed)
    failed = n_failed / (n_ok + n_failed)
    many_failed = f"with more than {percent(MAX_FAILED)} of the requests failed (up to "
    many_failed += f"{percent(failed.max())}), which meet no SLO unless --max-failed allows it"
    rows_by_doubt = {many_failed: failed > MAX_FAILED}
    for name, median in zip(("TTFT", "TPOT"), medians, strict=True):
        rows_by_doubt[f"without a median {name}"] = median.isna() & (n_ok > 0)
    notes += [f"{rows.sum()} {doubt}" for doubt, rows in rows_by_doubt.items() if rows.any()]

    points["gpu_profile_id"] = served.gpu_profile_id
    return write_published(out, about, points, configs, len(results), notes)


def _rows(tool: str, path: Path, llm: str | None) -> list[Point]:
    name, read = TOOLS[tool]
    fix = f"give {name}"
    content = read_json(path, fix=fix)
    rows = []
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
    """Return the known values of a result, with its `model`; InputError for a wrong value."""
    model = llm or point.pop("model")
    field, day = point.pop("day")
    asked_rps = point.pop("asked_rps")
    answered_rps = point.pop("request_rate_rps")
    # Users, or the rate that was asked for; neither where everything was sent at once.
    users = point.pop("users") if asked_rps is None else None
    rate_rps = asked_rps if users is None else answered_rps
    point |= {"users": users, "request_rate_rps": rate_rps}

    values = {k: v for k, v in point.items() if v is not None and v == v and k != "model"}
    if day is not None:
        try:
            written = day if day.isdigit() else day[:10]
            values["measured_on"] = date.fromisoformat(written).isoformat()
        except (AttributeError, ValueError):
            fix = f"correct {field}, or measure again"
            raise InputError(f"{str(day)[:40]!r} is no date", field=field, fix=fix) from None
    if values.get("n_ok") == 0:  # tools write latencies of 0 where no request was answered
        values = {name: values[name] for name in values if name in _WITHOUT_ANSWERS}
    for name in ("n_ok", "n_failed", "users"):
        if isinstance(values.get(name), float) and values[name].is_integer():
            values[name] = int(values[name])

    try:
        check_fields(PointRow, values | {"llm_id": "", "gpu_profile_id": ""}, path)
        check_latencies(pd.DataFrame([values]).reindex(columns=COLUMNS))
    except InputError as error:
        fix = f"correct {error.field}, or measure again"
        field = f"{error.field}{of_result}"
        raise InputError(error.problem, file=path, field=field, fix=fix) from None
    if not isinstance(model, str) or not model:
        fix = "name the LLM: --llm, as on Hugging Face"
        raise InputError("the file does not name the LLM", file=path, field="--llm", fix=fix)
    # The points' statistic is the median: a mean alone would not be read.
    lonely = {name for name in values if name.replace("mean_", "median_") not in values}
    return {name: value for name, value in values.items() if name not in lonely} | {"model": model}


def _vllm(result: Any) -> Iterator[Point]:
    n_ok = result["completed"]
    rate = result["request_rate"]
    names = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}
    yield {
        "model": result["model_id"],
        "users": result["max_concurrency"],
        "asked_rps": None if rate == "inf" else rate,
        "request_rate_rps": result["request_throughput"],
        "input_tokens": result["total_input_tokens"] / n_ok if n_ok else None,
        "output_tokens": result["total_output_tokens"] / n_ok if n_ok else None,
        **{
            f"{statistic}_{ours}_ms": result.get(f"{statistic}_{theirs}_ms")
            for ours, theirs in names.items()
            for statistic in STATISTICS
        },
        "throughput_tok_s": result["output_throughput"],
        "n_ok": n_ok,
        "n_failed": result.get("failed", result["num_prompts"] - n_ok),
        "day": ("date", f"{result['date']}".partition("-")[0]),
    }


def _guidellm(report: Any) -> Iterator[Point]:
    version = report.get("metadata", {}).get("guidellm_version")
    for result in report["benchmarks"]:
        metrics = result["metrics"]
        config = result.get("config") or result["args"]
        strategy = config["strategy"]
        totals = metrics["request_totals"]
        is_alone = strategy["type_"] == "synchronous"
        # By our name: guidellm's name, and the milliseconds in its unit.
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
    """Return a latency's statistics in ms; `ms` are the milliseconds in the block's unit."""
    values = {statistic: block.get(statistic) for statistic in STATISTICS}
    return {
        f"{statistic}_{name}_ms": value if value is None or ms == 1 else value * ms
        for statistic, value in values.items()
    }


def _only(config: Any, name: str) -> Any:
    """Return a key's one value at any depth, None without; InputError for several."""
    values: list[Any] = []

    def visit(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get(name), str | int | float | list) and part[name] not in values:
                values.append(part[name])
            part = list(part.values())
        for item in part if isinstance(part, list) else ():
            visit(item)

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

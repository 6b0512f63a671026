"""Makes points of what load tools measured: checks values, and says which points are doubtful.

What a file has no sound value of is unknown (null), never a figure: latencies of 0, the TPOT of
answers of one token, the TTFT of answers that did not stream. The column `doubt` says why a point
is doubtful, as `kind (detail)`, several separated by `; `.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import date
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.sheets import check_fields
from sextant.facts.answer_times import requests_in_flight
from sextant.facts.slo import MAX_FAILED
from sextant.pages.words import number, percent, plural
from sextant.points.folder_sheets import PointRow, check_latencies
from sextant.points.frame import COLUMNS, STATISTICS
from sextant.points.metrics import FEW_REQUESTS
from sextant.points.tool_run import Latency, ResultFile, ToolRun

Point = dict[str, Any]
"""The values of a point by column of points.csv, and `model`, the LLM's name on Hugging Face."""
DOUBT_SEPARATOR = "; "
_WITHOUT_ANSWERS = ("users", "request_rate_rps", "n_ok", "n_failed")
"""Columns of a run whose requests all failed: tools write latencies of 0."""
_COUNTS = ("n_ok", "n_failed", "users")
_BUSY = 0.8
"""Least share of the users that are in flight, and of an asked rate that is answered."""
_CAPPED = 0.95
"""Share of the slots that are taken where requests wait in the client."""
_TOO_FAST = 0.6
"""Least mean TPOT that is believed, as a share of the time per token by E2E: inference-perf
counted most tokens twice (github.com/kubernetes-sigs/inference-perf, #564)."""
_IN_ONE_PIECE = 0.99
"""Share of E2E above which a TTFT is E2E: the answer did not stream."""


def point_of(run: ToolRun, result: ResultFile, llm: str | None, of_result: str = "") -> Point:
    """Return the point of a run. InputError: a value is wrong, or the LLM is not named.

    Args:
        run: what was measured.
        result: the file that it is of.
        llm: name of the LLM, in place of the file's.
        of_result: which of the file's results it is, for errors.
    """
    try:
        values = _checked_values(run, result)
    except InputError as error:
        fix = f"correct {error.field}, or measure again"
        field = f"{error.field}{of_result}"
        raise InputError(error.problem, file=result.path, field=field, fix=fix) from None
    name = llm or run.llm
    if not isinstance(name, str) or not name:
        fix = "name the LLM: --llm, as on Hugging Face"
        raise InputError("the file does not name the LLM", file=result.path, field="--llm", fix=fix)

    run = replace(run, latencies=_latencies_of(values))
    run, doubts = _without_unsound(run, values)
    for metric, latency in run.latencies.items():
        values |= _columns(metric, latency)
    doubts = [*doubts, *_load_doubts(run, values), *_answer_doubts(run, values), *run.doubts]
    server = {name: getattr(run, name) for name in ("engine", "engine_version", "cuda_graphs")}
    values |= {"model": name, **server, "doubt": DOUBT_SEPARATOR.join(doubts) or None}
    return {name: value for name, value in values.items() if value is not None}


def doubt_kinds(doubt: str) -> list[str]:
    """Return the kinds of a column `doubt`, without their details."""
    return [part.partition(" (")[0] for part in doubt.split(DOUBT_SEPARATOR)]


def _checked_values(run: ToolRun, result: ResultFile) -> Point:
    """Return the known values by column; InputError: one is no number, or cannot be."""
    load = run.load
    users = load.users
    n_requests = (run.n_ok or 0) + (run.n_failed or 0) if run.n_ok is not None else None
    values: Point = {
        "users": users,
        # Of users the rate is a result.
        "request_rate_rps": load.asked_rps if users is None else load.answered_rps,
        "input_tokens": run.input_tokens or None,  # a length of 0 is none
        "output_tokens": run.output_tokens or None,
        "throughput_tok_s": run.throughput_tok_s,
        "n_ok": run.n_ok,
        "n_failed": run.n_failed,
        "measured_on": _day(*run.day),
    }
    for metric, latency in run.latencies.items():
        values |= _columns(metric, latency)
    values = {name: value for name, value in values.items() if value is not None and value == value}
    if values.get("n_ok") == 0:
        values = {name: values[name] for name in _WITHOUT_ANSWERS if name in values}
        if users is not None:
            values.pop("request_rate_rps", None)
    for name in _COUNTS:
        if isinstance(values.get(name), float) and values[name].is_integer():
            values[name] = int(values[name])
    check_fields(PointRow, values | {"llm_id": "", "gpu_profile_id": ""}, result.path)
    check_latencies(pd.DataFrame([values]).reindex(columns=COLUMNS))
    if run.n_ok and n_requests and "users" in values and n_requests < values["users"]:
        values["users"] = n_requests  # so many cannot have been in flight
    return values


def _columns(metric: str, latency: Latency) -> Point:
    return {f"{name}_{metric}_ms": value for name, value in asdict(latency).items()}


def _latencies_of(values: Mapping[str, Any]) -> dict[str, Latency]:
    """Return the latencies of checked values; a latency of 0 is none."""
    return {
        metric: Latency(*(values.get(f"{name}_{metric}_ms") or None for name in STATISTICS))
        for metric in ("ttft", "itl", "tpot", "e2e")
    }


def _day(field: str, day: Any) -> str | None:
    """Return a date as YYYY-MM-DD; InputError: it is none."""
    if day is None:
        return None
    try:
        written = day if day.isdigit() else day[:10]
        return date.fromisoformat(written).isoformat()
    except (AttributeError, ValueError):
        raise InputError(f"{str(day)[:40]!r} is no date", field=field) from None


def _without_unsound(run: ToolRun, values: Point) -> tuple[ToolRun, list[str]]:
    """Return a run without latencies that say nothing, and what is doubtful about that."""
    doubts: list[str] = []
    latencies = dict(run.latencies)
    output_tokens = values.get("output_tokens")
    if output_tokens is not None and output_tokens <= 1:
        latencies |= {"tpot": Latency(), "itl": Latency()}  # no gap between tokens
        return replace(run, latencies=latencies), doubts

    ttft_ms, e2e_ms = (latencies[name].mean for name in ("ttft", "e2e"))
    if ttft_ms is None or e2e_ms is None or output_tokens is None:
        return replace(run, latencies=latencies), doubts
    if ttft_ms > _IN_ONE_PIECE * e2e_ms:
        unknown = dict.fromkeys(("ttft", "tpot", "itl"), Latency())
        return replace(run, latencies=latencies | unknown), ["not streamed (no TTFT)"]

    per_token_ms = (e2e_ms - ttft_ms) / (output_tokens - 1)
    tpot_ms = latencies["tpot"].mean
    if tpot_ms is not None and tpot_ms < _TOO_FAST * per_token_ms:
        said = f"{number(tpot_ms)} ms, {number(per_token_ms)} by E2E"
        doubts.append(f"TPOT left out ({said})")
        latencies |= {"tpot": Latency(), "itl": Latency()}
    return replace(run, latencies=latencies), doubts


def _load_doubts(run: ToolRun, values: Point) -> Iterable[str]:
    """Yield what is doubtful about how load was put on the server."""
    load = run.load
    e2e_ms = run.latencies["e2e"].mean
    in_flight = None
    if load.answered_rps is not None and e2e_ms is not None:
        in_flight = requests_in_flight(load.answered_rps, e2e_ms)
    if load.users is not None:
        if (users := values["users"]) < load.users:
            yield f"idle users ({plural(users, 'request')} for {load.users} users)"
        elif in_flight is not None and in_flight < _BUSY * load.users:
            yield f"idle users (about {in_flight:.3g} of {load.users} in flight)"
    elif load.asked_rps is not None and load.answered_rps is not None:
        if load.answered_rps < _BUSY * load.asked_rps:
            answered = f"{load.answered_rps:.3g} of {load.asked_rps:.3g} requests/s answered"
            yield f"fell behind ({answered})"
        most = load.most_in_flight
        if in_flight is not None and most and in_flight > _CAPPED * most:
            yield f"waits in the client (no more than {most:g} in flight)"


def _answer_doubts(run: ToolRun, values: Point) -> Iterable[str]:
    """Yield what is doubtful about the answers."""
    n_ok = values.get("n_ok")
    n_failed = values.get("n_failed") or 0
    if n_ok is not None and "n_failed" not in values:
        yield "failures not counted (the file has none)"
    if n_ok is not None and n_failed > MAX_FAILED * (n_ok + n_failed):
        yield f"failures ({percent(n_failed / (n_ok + n_failed))} of the requests)"
    if n_ok and n_ok < FEW_REQUESTS:
        yield f"few requests ({n_ok} answered)"

"""What a load measured, level by level: latencies, rates, goodput, and why requests failed."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np
import pandas as pd

from sextant.base.files import provenance
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.wording import number, percent, plural
from sextant.points.cell_files import MeasuredCell
from sextant.points.metrics import (
    LATENCIES,
    SHOWN,
    START_SQL,
    STATISTICS,
    TPOT_SQL,
    meets_limits,
    statistics,
)
from sextant.points.run import LevelRun

_HEADER = ["", "mean", *STATISTICS]


def request_values(cell: MeasuredCell) -> pd.DataFrame:
    """Return one row per measured request, ordered by end: `level, status, error, sent_s,
    last_token_s, output_tokens, token_offsets_ms`, and its latencies; `itl_ms` is a list.
    """
    requests = cell.requests().assign(scenario_kind=cell.run.scenario_kind)
    latencies = ", ".join(f"{metric.sql} AS {metric.name}" for metric in LATENCIES)
    with duckdb.connect() as database:
        database.register("requests", requests)
        return database.sql(
            f"""SELECT *, {TPOT_SQL} AS tpot_ms FROM (
                SELECT level, status, error, sent_s, last_token_s, output_tokens,
                    token_offsets_ms, {latencies}
                FROM (SELECT *, {START_SQL} AS start_s FROM requests))
            ORDER BY last_token_s, sent_s"""
        ).df()


def pooled(values: pd.DataFrame, name: str) -> np.ndarray:
    """Return a latency of requests in ms, known ones only; ITL is that of all gaps."""
    if name == "itl_ms":
        return np.concatenate([*values["itl_ms"], np.empty(0)]).astype(float)
    return values[name].dropna().to_numpy(float)


def summarise_load(cell: MeasuredCell, limits_ms: Mapping[str, float]) -> dict[str, Any]:
    """Return what a load came to as JSON has it.

    Args:
        cell: what `sextant load` wrote.
        limits_ms: what each request has to keep to count as goodput, of `ttft_ms`, `nttft_ms`,
            `itl_ms` (the mean of its own gaps, which is its TPOT), `tpot_ms` and `e2e_ms`.
    """
    run, values = cell.run, request_values(cell)
    levels = [
        _summarise_level(values[values["level"] == level.level], level, limits_ms)
        for level in run.levels
    ]
    return {
        "llm_id": run.llm_id,
        "gpu_profile_id": run.gpu_profile_id,
        "engine": run.engine,
        "scenario": dict(run.scenario),
        "prompts": run.prompts,
        "is_complete": run.is_complete,
        "limits_ms": dict(limits_ms),
        "levels": levels,
    }


def _summarise_level(
    values: pd.DataFrame, level: LevelRun, limits_ms: Mapping[str, float]
) -> dict[str, Any]:
    ok, failed = values[values["status"] == "ok"], values[values["status"] != "ok"]
    own_ms = {name: ok[name].to_numpy(float) for name in (*SHOWN, "nttft_ms") if name != "itl_ms"}
    own_ms["itl_ms"] = own_ms["tpot_ms"]
    n_good = int(meets_limits(own_ms, limits_ms).sum())
    duration_s = level.duration_s or np.nan
    rates = {
        "throughput_tok_s": ok["output_tokens"].sum() / duration_s,
        "request_rate_rps": len(ok) / duration_s,
        "goodput_rps": n_good / duration_s if limits_ms else np.nan,
    }
    first = failed["error"].dropna()
    return {
        "level": "inf" if np.isinf(level.level) else level.level,
        "duration_s": level.duration_s,
        "n_ok": len(ok),
        "n_failed": len(failed),
        "n_good": n_good if limits_ms else None,
        **{name: statistics(pooled(ok, name)) for name in SHOWN},
        **{name: None if np.isnan(rate) else float(rate) for name, rate in rates.items()},
        "failures": dict(Counter(map(_kind, failed["status"], failed["error"])).most_common()),
        "first_failure": first.iloc[0] if len(first) else None,
        "send_lag_p99_ms": level.send_lag_ms.p99,
        "client_lag_p99_ms": level.client_lag_ms.p99,
        "warnings": [*filter(None, [level.lag_warning]), *level.answer_warnings],
    }


def _kind(status: str, error: str | None) -> str:
    """Return a failure's HTTP status if it has one, else what it was."""
    is_http = status == "http_error" and error
    return error.partition(":")[0] if is_http and error else status.replace("_", " ")


def _latency_rows(level: Mapping[str, Any]) -> list[list[str]]:
    return [[label, *map(number, level[name].values())] for name, label in SHOWN.items()]


def _rate_rows(level: Mapping[str, Any], limits_ms: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = [
        ("output tokens a second", number(level["throughput_tok_s"])),
        ("requests a second", number(level["request_rate_rps"])),
    ]
    if limits_ms:
        names = ", ".join(
            f"{name.removesuffix('_ms').upper().replace('NTTFT', 'nTTFT')} ≤ {limit:g} ms"
            for name, limit in limits_ms.items()
        )
        share = level["n_good"] / max(1, level["n_ok"] + level["n_failed"])
        good = f"{number(level['goodput_rps'])} ({percent(share)} of all)"
        rows.append((f"goodput, requests a second with {names}", good))
    lags = [number(level[f"{name}_lag_p99_ms"]) for name in ("send", "client")]
    return [*rows, ("the client's own lag, p99: sending, loop; ms", ", ".join(lags))]


def _notes(level: Mapping[str, Any]) -> list[str]:
    notes = list(level["warnings"])
    if level["n_failed"]:
        kinds = ", ".join(f"{n} {kind}" for kind, n in level["failures"].items())
        n_all = level["n_ok"] + level["n_failed"]
        said = f"; the first: {level['first_failure']}" if level["first_failure"] else ""
        notes.insert(0, f"{level['n_failed']} of {n_all} failed: {kinds}{said}")
    return notes


def summary_document(facts: Mapping[str, Any]) -> Document:
    """Return what `summarise_load` found for a terminal and as a page."""
    kind: str = facts["scenario"]["kind"]
    blocks: list[Block] = []
    if not facts["is_complete"]:
        blocks.append(Note("The load was interrupted.", "warning"))
    for level in facts["levels"]:
        unit = "requests a second" if kind == "open_loop" else "in flight"
        load = f"{float(level['level']):g} {unit}"
        if kind == "closed_loop":
            load = plural(int(level["level"]), "user")
        answered = f"{plural(level['n_ok'], 'answer')} in {number(level['duration_s'])} s"
        parts: list[Block] = [
            Headline(answered),
            Table(_HEADER, _latency_rows(level)),
            Facts(_rate_rows(level, facts["limits_ms"])),
            *map(Note, _notes(level)),
        ]
        blocks.append(Section(load, parts))
    where = f"{facts['llm_id']} on {facts['gpu_profile_id']}, {facts['engine'] or 'endpoint'}."
    return Document(f"{facts['llm_id']}: load", blocks, facts, where, provenance())

"""What a load measured, level by level: latencies, rates, goodput, and why requests failed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sextant.base.files import provenance
from sextant.experiment.scenarios import KINDS
from sextant.load.rows import RequestLog
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.wording import number, percent, plural
from sextant.points.metrics import SHOWN, STATISTICS, meets_limits
from sextant.points.run import CellRun, LevelRun

MAX_FAILED = 0.01
"""Share of requests that may fail where an SLO is met."""
_HEADER = ["", "mean", *STATISTICS]


def summarise_load(
    run: CellRun, logs: Sequence[RequestLog], limits_ms: Mapping[str, float]
) -> dict[str, Any]:
    """Return what a load came to as JSON has it.

    Args:
        limits_ms: what each request has to keep to count as goodput, of `ttft_ms`, `nttft_ms`,
            `itl_ms` (the mean of its own gaps, which is its TPOT), `tpot_ms` and `e2e_ms`.
    """
    is_due = not KINDS[run.scenario_kind].has_users
    return {
        "llm_id": run.llm_id,
        "gpu_profile_id": run.gpu_profile_id,
        "engine": run.engine,
        "scenario": dict(run.scenario),
        "prompts": run.prompts,
        "is_complete": run.is_complete,
        "limits_ms": dict(limits_ms),
        "levels": [
            _summarise_level(log, level, limits_ms, is_due)
            for level, log in zip(run.levels, logs, strict=True)
        ],
    }


def _summarise_level(
    log: RequestLog, level: LevelRun, limits_ms: Mapping[str, float], is_due: bool
) -> dict[str, Any]:
    duration_s = level.duration_s or np.nan
    n_good = 0
    if limits_ms:
        for own_ms in log.latencies(is_due=is_due):
            own_ms["itl_ms"] = own_ms["tpot_ms"]
            n_good += int(meets_limits(own_ms, limits_ms).sum())
    rates = {
        "throughput_tok_s": log.n_tokens / duration_s,
        "request_rate_rps": log.n_ok / duration_s,
        "goodput_rps": n_good / duration_s if limits_ms else np.nan,
    }
    return {
        "level": "inf" if np.isinf(level.level) else level.level,
        "duration_s": level.duration_s,
        "n_ok": log.n_ok,
        "n_failed": log.n_failed,
        "n_good": n_good if limits_ms else None,
        **{name: log.statistics(name, STATISTICS, is_due=is_due) for name in SHOWN},
        **{name: None if np.isnan(rate) else float(rate) for name, rate in rates.items()},
        "failures": dict(log.failures.most_common()),
        "first_failure": log.first_failure,
        "send_lag_p99_ms": level.send_lag_ms.p99,
        "client_lag_p99_ms": level.client_lag_ms.p99,
        "warnings": [*filter(None, [level.lag_warning]), *level.answer_warnings],
    }


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
        many = level["n_failed"] > MAX_FAILED * n_all
        verdict = f", more than {percent(MAX_FAILED)}: no SLO is met" if many else ""
        notes.insert(0, f"{level['n_failed']} of {n_all} failed{verdict}: {kinds}{said}")
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
        latencies = [[label, *map(number, level[name].values())] for name, label in SHOWN.items()]
        parts: list[Block] = [
            Headline(answered),
            Table(_HEADER, latencies),
            Facts(_rate_rows(level, facts["limits_ms"])),
            *map(Note, _notes(level)),
        ]
        blocks.append(Section(load, parts))
    where = f"{facts['llm_id']} on {facts['gpu_profile_id']}, {facts['engine'] or 'endpoint'}."
    return Document(f"{facts['llm_id']}: load", blocks, facts, where, provenance())

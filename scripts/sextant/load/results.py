"""The result of a load run as the files of a cell, with a summary of each level."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.base.files import provenance
from sextant.experiment.scenarios import KINDS
from sextant.facts.slo import MAX_FAILED, METRICS
from sextant.load.measure import LevelResult
from sextant.load.rows import RequestLog
from sextant.pages import blocks as page
from sextant.pages.blocks import Document
from sextant.pages.page import write_page
from sextant.pages.words import number, percent, plural
from sextant.points.cell_files import REQUEST_SCHEMA, write_cell
from sextant.points.metrics import SHOWN, STATISTICS, meets_limits
from sextant.points.run import CellRun, LevelRun
from sextant.points.verdict import FEASIBLE, Tuning


def write_load(
    out: Path, run: CellRun, results: Sequence[LevelResult], limits_ms: Mapping[str, float]
) -> Document:
    """Write the results of a load to the folder `out`; return their summary."""
    summary = summary_document(summarise_load(run, [it.log for it in results], limits_ms))
    batches = chain.from_iterable(result.batches() for result in results)
    requests = pa.RecordBatchReader.from_batches(REQUEST_SCHEMA, batches)

    def write_summary(folder: Path) -> None:
        write_page(summary, folder / "summary.html", folder / "summary.json")

    write_cell(out, run, Tuning(FEASIBLE), {"requests": requests}, write_summary)
    return summary


def summarise_load(
    run: CellRun, logs: Sequence[RequestLog], limits_ms: Mapping[str, float]
) -> dict[str, Any]:
    """Return what a load came to as JSON has it. `limits_ms` are those of each request for goodput,
    of `ttft_ms`, `nttft_ms`, `itl_ms` (the mean of its own gaps, which is its TPOT), `tpot_ms` and
    `e2e_ms`."""
    is_due = not KINDS[run.scenario_kind].has_users
    pairs = zip(run.levels, logs, strict=True)
    return {
        "llm_id": run.key.llm_id,
        "gpu_profile_id": run.key.gpu_profile_id,
        "engine": run.engine,
        "scenario": dict(run.scenario),
        "prompts": run.requests.prompts,
        "is_complete": run.is_complete,
        "limits_ms": dict(limits_ms),
        "levels": [_summarise_level(log, level, limits_ms, is_due) for level, log in pairs],
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
        **({"sessions": dict(level.sessions)} if level.sessions else {}),
        **{name: log.statistics(name, STATISTICS, is_due=is_due) for name in SHOWN},
        **{name: None if np.isnan(rate) else float(rate) for name, rate in rates.items()},
        "failures": dict(log.failures.most_common()),
        "first_failure": log.first_failure,
        "send_lag_p99_ms": level.client.send_lag_ms.p99,
        "client_lag_p99_ms": level.client.client_lag_ms.p99,
        "warnings": list(level.client.warnings),
    }


def _rate_rows(level: Mapping[str, Any], limits_ms: Mapping[str, float]) -> list[tuple[str, str]]:
    rows = [
        ("output tokens a second", number(level["throughput_tok_s"])),
        ("requests a second", number(level["request_rate_rps"])),
    ]
    if limits_ms:
        limits = {METRICS[name.removesuffix("_ms")]: limit for name, limit in limits_ms.items()}
        names = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits.items())
        share = level["n_good"] / max(1, level["n_ok"] + level["n_failed"])
        good = f"{number(level['goodput_rps'])} ({percent(share)} of all)"
        rows.append((f"goodput, requests a second with {names}", good))
    lags = ", ".join(number(level[f"{name}_lag_p99_ms"]) for name in ("send", "client"))
    return [*rows, ("the client's own lag, p99: sending, loop; ms", lags)]


def _notes(level: Mapping[str, Any]) -> list[str]:
    n_failed = level["n_failed"]
    n_all = level["n_ok"] + level["n_failed"]
    notes: list[str] = level["warnings"]
    if found := level.get("sessions"):
        n, n_turns, gone = map(plural, found.values(), ("session", "turn", "turn"))
        share = percent(found["n_not_sent"] / max(found["n_turns"], 1))
        failed = f"{gone} ({share}) not sent, which no figure counts: an answer before them failed"
        own = f"{n} with {n_turns} that wait for an answer and think as in the trace"
        notes = [own, *[failed] * (found["n_not_sent"] > 0), *notes]
    if not n_failed:
        return notes
    kinds = ", ".join(f"{n} {kind}" for kind, n in level["failures"].items())
    said = f"; the first: {level['first_failure']}" if level["first_failure"] else ""
    is_many = n_failed > MAX_FAILED * n_all
    verdict = f", more than {percent(MAX_FAILED)}: no SLO is met" if is_many else ""
    return [f"{n_failed} of {n_all} failed{verdict}: {kinds}{said}", *notes]


def summary_document(facts: Mapping[str, Any]) -> Document:
    """Return what `summarise_load` found for a terminal and as a page."""
    kind: str = facts["scenario"]["kind"]
    blocks: list[page.Block] = []
    if not facts["is_complete"]:
        blocks.append(page.Note("The load was interrupted.", "warning"))
    for level in facts["levels"]:
        unit = "requests a second" if kind == "open_loop" else "in flight"
        load = f"{float(level['level']):g} {unit}"
        if kind == "closed_loop":
            load = plural(int(level["level"]), "user")
        answered = f"{plural(level['n_ok'], 'answer')} in {number(level['duration_s'])} s"
        latencies = [[label, *map(number, level[name].values())] for name, label in SHOWN.items()]
        table = page.Table(["", "mean", *STATISTICS], latencies)
        rates = page.Facts(_rate_rows(level, facts["limits_ms"]))
        notes = map(page.Note, _notes(level))
        blocks.append(page.Section(load, [page.Headline(answered), table, rates, *notes]))
    where = f"{facts['llm_id']} on {facts['gpu_profile_id']}, {facts['engine'] or 'endpoint'}."
    return Document(f"{facts['llm_id']}: load", blocks, facts, where, provenance())

"""The result of a load run as the files of a cell, with a summary of each level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True)
class LevelSummary:
    """What a level of a load came to, in figures."""

    run: LevelRun
    log: RequestLog
    limits_ms: Mapping[str, float]  # of each request, for goodput
    is_due: bool  # latencies count from when a request was due, not from when it was sent

    @cached_property
    def n_good(self) -> int | None:
        """Answers within all limits; None without limits. A request's ITL is its TPOT here."""
        if not self.limits_ms:
            return None
        n_good = 0
        for latencies_ms in self.log.latencies(is_due=self.is_due):
            latencies_ms["itl_ms"] = latencies_ms["tpot_ms"]
            n_good += int(meets_limits(latencies_ms, self.limits_ms).sum())
        return n_good

    @cached_property
    def latencies_ms(self) -> dict[str, dict[str, float | None]]:
        """Mean and quantiles by latency; None where no answer has one."""
        return self.log.statistics(SHOWN, STATISTICS, is_due=self.is_due)

    @property
    def throughput_tok_s(self) -> float | None:
        """Output tokens of good answers per second."""
        return self._per_second(self.log.n_tokens)

    @property
    def request_rate_rps(self) -> float | None:
        """Good answers per second."""
        return self._per_second(self.log.n_ok)

    @property
    def goodput_rps(self) -> float | None:
        """Answers within all limits per second; None without limits."""
        return None if self.n_good is None else self._per_second(self.n_good)

    def _per_second(self, count: int) -> float | None:
        return count / self.run.duration_s if self.run.duration_s else None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        run, log = self.run, self.log
        return {
            "level": "inf" if np.isinf(run.level) else run.level,
            "duration_s": run.duration_s,
            "n_ok": log.n_ok,
            "n_failed": log.n_failed,
            "n_good": self.n_good,
            **({"sessions": dict(run.sessions)} if run.sessions else {}),
            **self.latencies_ms,
            "throughput_tok_s": self.throughput_tok_s,
            "request_rate_rps": self.request_rate_rps,
            "goodput_rps": self.goodput_rps,
            "failures": dict(log.failures.most_common()),
            "first_failure": log.first_failure,
            "send_lag_p99_ms": run.client.send_lag_ms.p99,
            "client_lag_p99_ms": run.client.client_lag_ms.p99,
            "warnings": list(run.client.warnings),
        }

    def section(self, kind: str) -> page.Section:
        """Return the figures in words, with the load as title, for a scenario of this kind."""
        level = self.run.level
        load = f"{level:g} {'requests a second' if kind == 'open_loop' else 'in flight'}"
        if kind == "closed_loop":
            load = plural(int(level), "user")
        answered = f"{plural(self.log.n_ok, 'answer')} in {number(self.run.duration_s)} s"
        rows = [[SHOWN[name], *map(number, it.values())] for name, it in self.latencies_ms.items()]
        table = page.Table(["", "mean", *STATISTICS], rows)
        notes = map(page.Note, self.notes())
        return page.Section(load, [page.Headline(answered), table, self.rates(), *notes])

    def rates(self) -> page.Facts:
        """Return the rates in words, with the client's lag, by which they can be trusted."""
        rows = [
            ("output tokens a second", number(self.throughput_tok_s)),
            ("requests a second", number(self.request_rate_rps)),
        ]
        if self.n_good is not None:
            limits = {METRICS[it.removesuffix("_ms")]: ms for it, ms in self.limits_ms.items()}
            names = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits.items())
            share = self.n_good / max(1, self.log.n_ok + self.log.n_failed)
            goodput = f"{number(self.goodput_rps)} ({percent(share)} of all)"
            rows.append((f"goodput, requests a second with {names}", goodput))
        client = self.run.client
        lags = ", ".join(number(lag.p99) for lag in (client.send_lag_ms, client.client_lag_ms))
        return page.Facts([*rows, ("the client's own lag, p99: sending, loop; ms", lags)])

    def notes(self) -> list[str]:
        """Return what a reader of the figures has to know: failures first, then sessions."""
        notes = list(self.run.client.warnings)
        if sessions := self.run.sessions:
            n, n_turns, n_not_sent = map(plural, sessions.values(), ("session", "turn", "turn"))
            if sessions["n_not_sent"]:
                share = percent(sessions["n_not_sent"] / max(sessions["n_turns"], 1))
                reason = "not sent, which no figure counts: an answer before them failed"
                notes.insert(0, f"{n_not_sent} ({share}) {reason}")
            notes.insert(0, f"{n} with {n_turns} that wait for an answer and think as in the trace")
        n_failed = self.log.n_failed
        if not n_failed:
            return notes

        n_all = self.log.n_ok + n_failed
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.log.failures.most_common())
        first = f"; the first: {self.log.first_failure}" if self.log.first_failure else ""
        is_many = n_failed > MAX_FAILED * n_all
        verdict = f", more than {percent(MAX_FAILED)}: no SLO is met" if is_many else ""
        return [f"{n_failed} of {n_all} failed{verdict}: {kinds}{first}", *notes]


@dataclass(frozen=True)
class LoadSummary:
    """What a load came to."""

    run: CellRun
    levels: list[LevelSummary]
    limits_ms: Mapping[str, float]

    @classmethod
    def of(
        cls, run: CellRun, logs: Sequence[RequestLog], limits_ms: Mapping[str, float]
    ) -> "LoadSummary":
        """Summarise a load with a log per level.

        `limits_ms` are those of each request for goodput, of `ttft_ms`, `nttft_ms`, `itl_ms` (the
        mean of the request's own gaps, which is its TPOT), `tpot_ms` and `e2e_ms`.
        """
        is_due = not KINDS[run.scenario_kind].has_users
        pairs = zip(run.levels, logs, strict=True)
        levels = [LevelSummary(level, log, limits_ms, is_due) for level, log in pairs]
        return cls(run, levels, limits_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return {
            "llm_id": self.run.key.llm_id,
            "gpu_profile_id": self.run.key.gpu_profile_id,
            "engine": self.run.engine,
            "scenario": dict(self.run.scenario),
            "prompts": self.run.requests.prompts,
            "is_complete": self.run.is_complete,
            "limits_ms": dict(self.limits_ms),
            "levels": [level.to_dict() for level in self.levels],
        }

    def document(self) -> Document:
        """Return the figures for a terminal and as a page."""
        key = self.run.key
        blocks: list[page.Block] = [it.section(self.run.scenario_kind) for it in self.levels]
        if not self.run.is_complete:
            blocks.insert(0, page.Note("The load was interrupted.", "warning"))
        where = f"{key.llm_id} on {key.gpu_profile_id}, {self.run.engine or 'endpoint'}."
        return Document(f"{key.llm_id}: load", blocks, self.to_dict(), where, provenance())


def write_load(
    out: Path, run: CellRun, results: Sequence[LevelResult], limits_ms: Mapping[str, float]
) -> Document:
    """Write the results of a load to the folder `out`; return their summary."""
    summary = LoadSummary.of(run, [result.log for result in results], limits_ms).document()
    batches = chain.from_iterable(result.batches() for result in results)
    requests = pa.RecordBatchReader.from_batches(REQUEST_SCHEMA, batches)

    def write_summary(folder: Path) -> None:
        write_page(summary, folder / "summary.html", folder / "summary.json")

    write_cell(out, run, Tuning(FEASIBLE), {"requests": requests}, write_summary)
    return summary

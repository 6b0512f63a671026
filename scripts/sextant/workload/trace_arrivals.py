"""Arrival processes that repeat a trace: exactly (`Replay`), or its windows (`Windows`).

The trace is read when times are drawn: who puts another process on a server loads no data frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.generator_limits import check_positive
from sextant.workload.generators import (
    Arrivals,
    AtOnce,
    Constant,
    Gamma,
    Varying,
    mirrored,
    replayed,
)

if TYPE_CHECKING:
    import pandas as pd

    from sextant.workload.sampling import Seed


@dataclass(frozen=True)
class _OfTrace(Arrivals):
    """The requests of a normalised trace, or of one LLM or service of it.

    `times` raises InputError if the file is not such a trace, or has not one such group.
    """

    ends_itself = True
    trace: str | Path
    llm: str | None = None
    service: str | None = None
    time_factor: float = 1.0
    """Factor on all gaps; 0.5 doubles the rate."""

    def __post_init__(self) -> None:
        check_positive(time_factor=self.time_factor)

    def group(self) -> dict[str, str]:
        """Return the columns that choose the requests, each with its value."""
        chosen = {"llm": self.llm, "service": self.service}
        return {name: value for name, value in chosen.items() if value is not None}


@dataclass(frozen=True)
class Replay(_OfTrace):
    """The trace's own arrivals from its first on."""

    kind = "replay"

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        return replayed(self._arrival_s(), time_factor=self.time_factor)

    def _arrival_s(self) -> np.ndarray:
        import pyarrow.compute as pc

        from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet
        from sextant.ingest.trace_format import require_trace

        require_trace(self.trace)
        table = read_parquet(self.trace, ["arrival_s", *self.group()], fix=MAKE_TRACE_AGAIN)
        for name, value in self.group().items():
            table = table.filter(pc.equal(table[name], value))
        if not len(table):
            problem = "no request of " + ", ".join(f"{n} {v!r}" for n, v in self.group().items())
            fix = "leave --llm and --service out, or correct them"
            raise InputError(problem, file=self.trace, fix=fix)
        return table["arrival_s"].to_numpy()


@dataclass(frozen=True)
class Windows(_OfTrace):
    """Arrivals that mirror the trace window by window (see `generators.mirrored`)."""

    kind = "windows"

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        return mirrored(self._windows(), beta_factor=self.time_factor, seed=seed)

    def _windows(self) -> pd.DataFrame:
        from sextant.ingest.trace_format import require_trace
        from sextant.workload.windows import fit_windows

        require_trace(self.trace)
        windows = fit_windows(self.trace)
        for name, value in self.group().items():
            windows = windows[windows[name] == value]
        found = windows[["llm", "service"]].drop_duplicates()
        if len(found) != 1:
            listed = "; ".join(f"{row.llm}, {row.service}" for row in found.itertuples())
            problem = f"{len(found)} pairs of LLM and service"
            fix = f"choose one with --llm and --service: {listed or 'none matches'}"
            raise InputError(problem, file=self.trace, field="--llm", fix=fix)
        return windows


PROCESSES: dict[str, type[Arrivals]] = {
    process.kind: process for process in (Constant, Gamma, Varying, AtOnce, Replay, Windows)
}


def arrivals_from_plain(values: Mapping[str, Any]) -> Arrivals:
    """Read an arrival process as a definition has it: its `kind` and its fields."""
    return PROCESSES[values["kind"]](**{name: it for name, it in values.items() if name != "kind"})

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
from sextant.workload.generators import (
    Arrivals,
    AtOnce,
    Constant,
    Gamma,
    Varying,
    check_positive,
    check_size,
    rest_of_gap,
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
        arrival_s = self._arrival_s()
        if not (np.all(np.isfinite(arrival_s)) and np.all(np.diff(arrival_s) >= 0)):
            problem, fix = "the times do not ascend", "give a normalised trace"
            raise InputError(problem, file=self.trace, field="arrival_s", fix=fix)
        return (arrival_s - arrival_s[0]) * self.time_factor

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
    """Arrivals that mirror the trace window by window (see `mirrored`)."""

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


def mirrored(windows: pd.DataFrame, *, beta_factor: float = 1.0, seed: Seed = 0) -> np.ndarray:
    """Mirror the windows of a trace, at its scale or another (BurstGPT, IV-A.1).

    Each window keeps its duration and shape and has its counted rate, divided by `beta_factor`
    (docs/workloads.md says why not the fitted scale). A window without a fit, alpha null, is
    Poisson at its counted rate; one without a request stays empty. A gap that is under way at the
    end of a window goes on in the next one at that one's pace, so that no window begins with an
    arrival.

    `windows` are rows of `windows.fit_windows` of one LLM and service, or the user's own: `start_s`
    (ascending), `duration_s`, `n_requests` and `alpha`. Times count from the first row's start.

    Raises:
        InputError: a column is missing, windows overlap, or a value is out of range.
    """
    check_positive(beta_factor=beta_factor)
    start_s, lasting_s, weight, alpha = _checked_windows(windows)
    expected = weight / beta_factor
    check_size(float(expected.sum()))
    rng = np.random.default_rng(seed)
    times = [np.zeros(0)]
    # In units of the mean gap, where all windows have the pace 1.
    wait = rest_of_gap(rng, alpha[0])
    for begin_s, own_s, units, shape in zip(start_s, lasting_s, expected, alpha, strict=True):
        points = np.array([wait])
        while points[-1] < units:
            n_drawn = int(units - points[-1]) + 16
            drawn = rng.gamma(shape, 1 / shape, n_drawn)
            points = np.concatenate([points, points[-1] + np.cumsum(drawn)])
        n_inside = int(np.searchsorted(points, units))
        wait = points[n_inside] - units
        times.append(begin_s + points[:n_inside] * (own_s / units if units else 0.0))
    return np.concatenate(times)


def _checked_windows(windows: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Return start (from 0), duration, requests and shape of each window."""
    wanted = ("start_s", "duration_s", "n_requests", "alpha")
    missing = [name for name in wanted if name not in windows]
    if missing or windows.empty:
        fix = f"give rows with {', '.join(wanted)}"
        raise InputError("no windows to mirror", field=(missing or wanted)[0], fix=fix)
    start_s, lasting_s, n_requests, alpha = (windows[name].to_numpy(float) for name in wanted)
    alpha = np.where(np.isnan(alpha), 1.0, alpha)
    for name, values, lowest in zip(
        wanted[1:], (lasting_s, n_requests, alpha), (0.0, 0.0, np.finfo(float).tiny), strict=True
    ):
        if not np.all(np.isfinite(values) & (values >= lowest)):
            problem, fix = "a window's value is out of range", "give finite numbers from 0 on"
            raise InputError(problem, field=name, fix=fix)
    # Rounding may let a window end a little after the next one's start.
    if not np.all(np.diff(start_s) >= lasting_s[:-1] * (1 - 1e-9)):
        fix = "give the windows of one LLM and service, in the order of time"
        raise InputError("windows overlap", field="start_s", fix=fix)
    return start_s - start_s[0], lasting_s, n_requests, alpha


PROCESSES: dict[str, type[Arrivals]] = {
    process.kind: process for process in (Constant, Gamma, Varying, AtOnce, Replay, Windows)
}


def arrivals_from_plain(values: Mapping[str, Any]) -> Arrivals:
    """Read an arrival process as a definition has it: its `kind` and its fields."""
    return PROCESSES[values["kind"]](**{name: it for name, it in values.items() if name != "kind"})

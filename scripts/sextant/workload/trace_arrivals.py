"""Arrival processes that repeat a trace: exactly (`Replay`), or its windows (`Windows`).

The trace is read when times are drawn: who puts another process on a server loads no data frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.generators import (
    Arrivals,
    AtOnce,
    Constant,
    Gamma,
    Scaled,
    Varying,
    check_positive,
    check_size,
)
from sextant.workload.markov import Markov
from sextant.workload.modulated import Clients, Mirrored, Rescaled, Spanned

if TYPE_CHECKING:
    import pandas as pd

    from sextant.workload.seeds import Seed


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
        from sextant.trace.trace_format import require_trace

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
class Recorded(Spanned):
    """The times of a trace as a workload's folder keeps them: replayed as they are."""

    kind = "recorded"
    file: str | Path
    """`arrivals.parquet`, with the column `arrival_s`."""

    @property
    def span_s(self) -> float:
        """Return the last arrival and a mean gap: the first of the next round is one gap later."""
        times = self._times()
        return float(times[-1]) * (1 + 1 / max(len(times) - 1, 1))

    def once(self, rng: np.random.Generator, end_s: float) -> Iterator[np.ndarray]:
        """Yield all times; nothing is drawn."""
        yield self._times()

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        times = self._times()
        if not times[-1] > 0:  # all at once has no span that could follow itself
            return times
        return super()._draw(most, end_s, seed)

    def _times(self) -> np.ndarray:
        from sextant.base.files import MAKE_WORKLOAD_AGAIN, read_parquet

        if not Path(self.file).is_file():
            problem = "the arrivals of the trace are not there to replay"
            raise InputError(problem, file=self.file, fix=MAKE_WORKLOAD_AGAIN)
        table = read_parquet(self.file, ["arrival_s"], fix=MAKE_WORKLOAD_AGAIN)
        times = table["arrival_s"].to_numpy()
        if not (len(times) and np.all(np.isfinite(times)) and np.all(np.diff(times) >= 0)):
            problem = "the times do not ascend"
            field = "arrival_s"
            raise InputError(problem, file=self.file, field=field, fix=MAKE_WORKLOAD_AGAIN)
        return times


@dataclass(frozen=True)
class Windows(_OfTrace):
    """Arrivals that mirror the trace window by window (see `mirrored`)."""

    kind = "windows"

    def _draw(self, most: int, end_s: float, seed: Seed) -> np.ndarray:
        return mirrored(self._windows(), beta_factor=self.time_factor, seed=seed)

    def _windows(self) -> pd.DataFrame:
        from sextant.trace.trace_format import require_trace
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
    if not expected.any():
        return np.zeros(0)
    columns = (values.tolist() for values in (start_s, lasting_s, expected, alpha))
    return np.concatenate([*Mirrored(*columns).once(np.random.default_rng(seed), np.inf)])


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


FITTED, REPLAY = "fitted", "replay"
NAMES = (FITTED, "gamma", "windows", "clients", "markov", "rescaled", REPLAY)
"""The arrivals of a fitted workload: the model that the fit has chosen, and each by itself."""

PROCESSES: dict[str, type[Arrivals]] = {
    process.kind: process
    for process in (
        *(Constant, Gamma, Varying, AtOnce, Scaled),
        *(Mirrored, Rescaled, Markov, Clients, Recorded, Replay, Windows),
    )
}


def arrivals_to_plain(process: Arrivals) -> dict[str, Any]:
    """Return an arrival process as JSON has it: its `kind` and its fields."""
    return {"kind": process.kind} | {
        field.name: _plain(getattr(process, field.name)) for field in fields(process)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Arrivals):
        return arrivals_to_plain(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):  # of numbers, many of them, or of processes
        return [_plain(each) if isinstance(each, Arrivals) else each for each in value]
    return value


def arrivals_from_plain(values: Mapping[str, Any]) -> Arrivals:
    """Read an arrival process as a definition has it: its `kind` and its fields."""
    given = {name: _read(value) for name, value in values.items() if name != "kind"}
    return PROCESSES[values["kind"]](**given)


def _read(value: Any) -> Any:
    if isinstance(value, Mapping):
        return arrivals_from_plain(value)
    return tuple(_read(each) for each in value) if isinstance(value, list | tuple) else value

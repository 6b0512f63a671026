"""Arrivals of a trace or of a fitted workload: replayed, mirrored by windows, or as fitted.

A trace is read when times are drawn, so that other arrivals load no data frames.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sextant.base import files
from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, MAKE_WORKLOAD_AGAIN, read_parquet
from sextant.base.whole_files import atomic_path, settle
from sextant.workload import generators
from sextant.workload.requests import Turns

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from sextant.workload.generators import Seed

FITTED = "fitted"
REPLAY = "replay"
NAMES = (FITTED, "gamma", "rescaled", REPLAY)
"""The arrivals of a fitted workload: the model that the fit has chosen, and each by itself."""
TIMES_FILE = "arrivals.parquet"  # the trace's own times, in a workload's folder


@dataclass(frozen=True)
class _OfTrace(generators.Arrivals):
    """The requests of a normalised trace, or of one LLM or service of it."""

    ends_itself = True
    trace: str | Path
    llm: str | None = None
    service: str | None = None
    time_factor: float = 1.0  # factor on all gaps; 0.5 doubles the rate

    def group(self) -> dict[str, str]:
        """Return the columns that choose the requests, each with its value."""
        chosen = {"llm": self.llm, "service": self.service}
        return {name: value for name, value in chosen.items() if value is not None}


@dataclass(frozen=True)
class Replay(_OfTrace):
    """The trace's own arrivals from its first on; stamps of a coarse clock are spread."""

    kind = "replay"

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        import pyarrow.compute as pc

        from sextant.trace.trace_format import require_trace
        from sextant.workload.arrivals import on_fine_clock

        require_trace(self.trace)
        table = read_parquet(self.trace, ["arrival_s", *self.group()], fix=MAKE_TRACE_AGAIN)
        for name, value in self.group().items():
            table = table.filter(pc.equal(table[name], value))

        if not len(table):
            problem = "no request of " + ", ".join(f"{n} {v!r}" for n, v in self.group().items())
            fix = "leave --llm-in-trace and --service-in-trace out, or correct them"
            raise InputError(problem, file=self.trace, fix=fix)

        arrival_s = _ascending(table, self.trace, "give a normalised trace")
        arrival_s, _ = on_fine_clock(arrival_s, generators.child_seed(seed, 0))
        yield (arrival_s - arrival_s[0]) * self.time_factor

    def turns(self, arrival_s: np.ndarray) -> Turns:
        """Return the turns of the trace's first requests, whose `times` are `arrival_s`.

        Raises InputError as `read_turns`.
        """
        turns = read_turns(self.trace, arrival_s / self.time_factor, np.arange(len(arrival_s)))
        return turns._replace(think_s=turns.think_s * self.time_factor)


def read_turns(trace: str | Path, arrival_s: np.ndarray, rows: np.ndarray) -> Turns:
    """Return the turns among these rows of a trace, which arrive at `arrival_s`.

    A turn waits for the last answer of its session that had ended when it arrived, by the trace's
    `e2e_ms`. The time between the two is think time. Turns of agents that work side by side may
    overlap; they wait for the same answer, so a session is a tree. No turn waits for a failed
    request.

    Raises InputError: the trace has no sessions, or does not say how long its answers took.
    """
    import pyarrow.compute as pc

    columns = ["session_id", "e2e_ms", "status"]
    table = read_parquet(trace, columns, fix=MAKE_TRACE_AGAIN).take(rows)
    codes = table["session_id"].combine_chunks().dictionary_encode().indices
    session = codes.fill_null(-1).to_numpy(zero_copy_only=False)
    if len(np.unique(session[session >= 0])) == (session >= 0).sum():
        problem = "no session has two requests"
        fix = "leave out --sessions"
        raise InputError(problem, file=trace, field="session_id", fix=fix)
    if table["e2e_ms"].null_count == len(table):
        problem = "without answers' times it is not known how long somebody thought"
        raise InputError(problem, file=trace, field="e2e_ms", fix="leave out --sessions")

    end_s = arrival_s + np.nan_to_num(table["e2e_ms"].to_numpy()) / 1e3
    is_ok = pc.equal(table["status"], "ok").to_numpy()
    parent = np.full(len(rows), -1)
    think_s = np.zeros(len(rows))
    ended: dict[int, list[tuple[float, int]]] = {}
    for index in np.flatnonzero(session >= 0).tolist():
        answers = ended.setdefault(int(session[index]), [])
        if n := bisect_right(answers, (arrival_s[index], len(rows))):
            at_s, parent[index] = answers[n - 1]
            think_s[index] = arrival_s[index] - at_s
        if is_ok[index]:
            insort(answers, (float(end_s[index]), index))

    return Turns(session, parent, think_s)


@dataclass(frozen=True)
class Recorded(generators.Arrivals):
    """The times of its trace that a workload's folder keeps, replayed as often as there is time."""

    kind = "recorded"
    ends_itself = True
    file: str | Path  # `arrivals.parquet`, with the column `arrival_s`
    rate_factor: float = 1.0  # on the number of requests (see `multiplied`)

    def scaled(self, rate_factor: float) -> generators.Arrivals:
        """Return the trace with `rate_factor` times its requests."""
        return replace(self, rate_factor=self.rate_factor * rate_factor)

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        if not Path(self.file).is_file():
            problem = "the arrivals of the trace are not there to replay"
            raise InputError(problem, file=self.file, fix=MAKE_WORKLOAD_AGAIN)

        table = read_parquet(self.file, ["arrival_s"], fix=MAKE_WORKLOAD_AGAIN)
        times = _ascending(table, self.file, MAKE_WORKLOAD_AGAIN)
        begin_s = 0.0
        if self.rate_factor != 1:
            times = generators.multiplied(times, self.rate_factor)[0]

        # Again from one mean gap after the last on.
        span_s = float(times[-1]) * (1 + 1 / max(len(times) - 1, 1))
        is_endless = math.isinf(end_s) and most > generators.MAX_REQUESTS
        while begin_s < (span_s if is_endless else end_s) or not begin_s:
            yield begin_s + times
            if not span_s:  # all at once: there is no span to repeat
                return
            begin_s += span_s


def _ascending(table: pa.Table, file: str | Path, fix: str) -> np.ndarray:
    times = table["arrival_s"].to_numpy()
    if not (len(times) and np.all(np.isfinite(times)) and np.all(np.diff(times) >= 0)):
        raise InputError("the times do not ascend", file=file, field="arrival_s", fix=fix)
    return times


@dataclass(frozen=True)
class Windows(_OfTrace):
    """Arrivals that mirror the trace window by window (see `mirrored`)."""

    kind = "windows"

    def _parts(self, most: int, end_s: float, seed: Seed) -> Iterator[np.ndarray]:
        from sextant.trace.trace_format import require_trace
        from sextant.workload.profiles import fit_windows

        require_trace(self.trace)
        windows = fit_windows(self.trace)
        for name, value in self.group().items():
            windows = windows[windows[name] == value]

        pairs = windows[["llm", "service"]].drop_duplicates()
        if len(pairs) != 1:
            listed = "; ".join(f"{row.llm}, {row.service}" for row in pairs.itertuples())
            problem = f"{len(pairs)} pairs of LLM and service"
            fix = (
                f"choose one with --llm-in-trace and --service-in-trace: {listed or 'none matches'}"
            )
            raise InputError(problem, file=self.trace, field="--llm-in-trace", fix=fix)

        yield mirrored(windows, beta_factor=self.time_factor, seed=seed)


def mirrored(windows: pd.DataFrame, *, beta_factor: float = 1.0, seed: Seed = 0) -> np.ndarray:
    """Mirror the windows of a trace, at its scale or another (BurstGPT, IV-A.1).

    Each window keeps its duration and shape; its rate is the counted one over `beta_factor`
    (docs/workloads.md says why not the fitted scale). `windows` are those of
    `profiles.fit_windows`: `start_s` (ascending; times count from the first), `duration_s`,
    `n_requests`, `alpha` (null: Poisson). Raises InputError: too many requests.
    """
    start_s, lasting_s, n_requests, alpha = (
        windows[name].to_numpy(float) for name in ("start_s", "duration_s", "n_requests", "alpha")
    )
    alpha = np.where(np.isnan(alpha), 1.0, alpha)
    expected = n_requests / beta_factor
    if not expected.any():
        return np.zeros(0)

    columns = (values.tolist() for values in (start_s - start_s[0], lasting_s, expected, alpha))

    return generators.Mirrored(*columns).times(seed=seed)


_ALL: tuple[type[generators.Arrivals], ...] = (
    *(generators.Constant, generators.Gamma, generators.Varying, generators.AtOnce),
    *(generators.Mirrored, generators.Rescaled, Recorded, Replay, Windows),
)
PROCESSES = {process.kind: process for process in _ALL}


def arrivals_to_plain(process: generators.Arrivals) -> dict[str, Any]:
    """Return an arrival process as JSON has it: its `kind` and its fields."""
    values: dict[str, Any] = {"kind": process.kind}
    for field in fields(process):
        value = getattr(process, field.name)
        value = str(value) if isinstance(value, Path) else value
        values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def arrivals_from_plain(values: Mapping[str, Any]) -> generators.Arrivals:
    """Read an arrival process as a definition has it: its `kind` and its fields."""
    parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    del parameters["kind"]
    return PROCESSES[values["kind"]](**parameters)


def write_times(arrivals_out: str | Path, times: np.ndarray, origin: Mapping[str, Any]) -> Path:
    """Write a trace's times into the folder of `arrivals.json`, and return their path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(arrivals_out).with_name(TIMES_FILE)
    metadata = {files.PROVENANCE_KEY: json.dumps(origin).encode()}
    schema = pa.schema([("arrival_s", pa.float64())], metadata)
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False}
    options["column_encoding"] = {"arrival_s": "BYTE_STREAM_SPLIT"}
    with atomic_path(path) as temporary:
        pq.write_table(pa.table([times], schema=schema), temporary, **options)

    return path


def arrivals_to_json(
    model: generators.ArrivalModel,
    facts: Mapping[str, Any],
    choice: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what `arrivals.json` holds: a Gamma fit, the facts that it follows from, and a choice.

    The choice is `model`, `why` and `models`; None: there is no trace.
    """
    choice = choice or {"model": None, "why": model.reason, "models": {}}
    return {"distribution": "gamma", **asdict(model), **choice, "fit": facts}


def load_arrivals(path: str | Path) -> generators.ArrivalModel:
    """Read the Gamma fit from a workload's folder or its `arrivals.json`; see `read_stored`."""
    stored = read_stored(path)
    names = generators.ArrivalModel.__dataclass_fields__
    return generators.ArrivalModel(**{name: stored[name] for name in names})


def read_stored(path: str | Path) -> dict[str, Any]:
    """Return what `arrivals.json` holds; InputError: no such file, or a malformed field."""
    path = Path(path)
    path = path / "arrivals.json" if path.is_dir() else path
    settle(path.parent)
    if not path.is_file():
        raise InputError("there is no arrival model", file=path, fix="fit the workload first")

    fix = MAKE_WORKLOAD_AGAIN
    stored = files.read_object(path, fix=fix)
    facts = stored.setdefault("fit", {})
    if not isinstance(facts, dict):
        raise InputError("is not a JSON object", file=path, field="fit", fix=fix)

    names = list(generators.ArrivalModel.__dataclass_fields__)
    missing = [name for name in (*names, "model", "why", "models") if name not in stored]
    if missing:
        raise InputError("the field is missing", file=path, field=missing[0], fix="fit it again")

    numbers = {name: stored[name] for name in names if name != "reason"}
    numbers |= {name: cap for name, cap in facts.items() if name.startswith("max_")}
    for name, value in numbers.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value)):
            raise InputError(f"{value!r} is not a number", file=path, field=name, fix=fix)

    for name in ("alpha_lo", "alpha_hi", "beta_s", "cv"):
        if stored["alpha"] is not None and stored[name] is None:
            raise InputError("the number is missing", file=path, field=name, fix=fix)

    return stored


def fitted_arrivals(folder: str | Path, name: str = FITTED) -> generators.Arrivals:
    """Return a workload's arrivals by one of `NAMES`, whether the model passed or not.

    Raises InputError: the workload has no such arrivals, or its files are damaged.
    """
    folder = Path(folder)
    stored = read_stored(folder)
    model = stored["model"] if name == FITTED else name
    if stored["model"] is None:
        raise _without(folder, name, stored["why"])
    if model == REPLAY and not (folder / TIMES_FILE).is_file():
        raise _without(folder, name, "its trace's times are not in its folder")
    if model == REPLAY:
        return Recorded(folder / TIMES_FILE)

    try:
        stored_model = stored["models"].get(model, {})
        if stored_model.get("process"):
            return arrivals_from_plain(stored_model["process"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{model} is not an arrival process ({error!r})"
        raise InputError(problem, file=folder / "arrivals.json", fix=MAKE_WORKLOAD_AGAIN) from None

    raise _without(folder, name, stored_model.get("reason") or "its trace has no such model")


def _without(folder: Path, name: str, why: str) -> InputError:
    fix = "use other arrivals, or a rate with a burstiness; or fit the workload to a trace"
    return InputError(f"it has no {name} arrivals ({why})", file=folder, field="arrivals", fix=fix)


def arrivals_at_rate(folder: str | Path, name: str, rate_rps: float) -> generators.Arrivals:
    """Return a workload's arrivals at another mean rate.

    Raises InputError: the workload has no such arrivals, or all its requests come at once.
    """
    fitted_rps = load_arrivals(folder).rate_rps
    if not fitted_rps:
        raise _without(Path(folder), name, "all at once has no rate to scale")
    return fitted_arrivals(folder, name).scaled(rate_rps / fitted_rps)

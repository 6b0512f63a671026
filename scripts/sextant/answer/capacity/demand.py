"""What arrives: the requests of a trace, or those drawn from a workload at a rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

import duckdb
import numpy as np
import pandas as pd

from sextant.answer.question import Length, Requests
from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading
from sextant.base.ids import id_of
from sextant.pages.wording import duration_words, percent
from sextant.simulate.inputs import Requests as SimulatedRequests
from sextant.trace.trace_format import parquet_rows, require_trace, sql_text
from sextant.workload.arrivals import on_fine_clock
from sextant.workload.draw import draw_trace, open_workload
from sextant.workload.generators import (
    BLOCK_S,
    SHIFT_S,
    Arrivals,
    Gamma,
    Seed,
    batches_of,
    check_positive,
    multiplied,
)
from sextant.workload.profiles import start_time
from sextant.workload.shared_blocks import read_blocks
from sextant.workload.trace_arrivals import FITTED, arrivals_at_rate, read_stored

MOST_REQUESTS = 200_000
"""Requests of a trace that are simulated at a time: those of its busiest windows where it has
more."""
MOST_COPIED = 1_000_000
"""Requests of one simulation where a factor on the traffic makes more of them."""
_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
_PREFIX = ("prefix_id", "prefix_tokens")
_BURSTS_S = (1, 10, 60)
_SETTINGS = "SET memory_limit = '700MB'; SET enable_progress_bar = false"


@dataclass(frozen=True)
class Demand:
    """Requests in the order of arrival."""

    name: str
    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    duration_s: float
    start_time: datetime | None = None
    """Date and time of `arrival_s` = 0, where the trace has one."""
    n_of_trace: int | None = None
    """Requests of the whole trace, where only its busiest windows are kept."""
    n_failed: int = 0
    """Requests that failed in the trace and are left out: their lengths are not known."""
    prefix_id: np.ndarray | None = None
    """With `prefix_tokens`, which requests begin alike, and how far, as in `simulate.Requests`."""
    prefix_tokens: np.ndarray | None = None
    clock_step_s: float | None = None
    """Step of the trace's clock, over which equal stamps were spread; None: it was fine."""
    factor: float = 1.0
    """How many times the trace's requests these are."""

    @property
    def n(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def rate_rps(self) -> float:
        """Mean rate of the whole trace, also where only a part is kept."""
        return (self.n_of_trace or self.n) / self.duration_s

    def n_windows(self, window_s: float | None) -> int:
        """Return how many windows the time has; less than half a window joins the last one."""
        return max(math.floor(self.duration_s / window_s + 0.5), 1) if window_s else 1

    def at_speed(self, speed: float) -> "Demand":
        """Return the same requests `speed` times as fast: all gaps are divided by it."""
        arrival_s, duration_s = self.arrival_s / speed, self.duration_s / speed
        return replace(self, arrival_s=arrival_s, duration_s=duration_s)

    def multiplied(self, factor: float, block_s: float | None = None) -> "Demand":
        """Return `factor` times as many requests on the same clock (see `generators.multiplied`).

        Copies share no prefix. Windows of `block_s` have their requests times the factor.
        """
        if factor == 1:
            return self
        arrival_s, places, copies = multiplied(self.arrival_s, factor, block_s=block_s or BLOCK_S)
        found = replace(self.at(places), arrival_s=arrival_s, factor=factor * self.factor)
        if self.prefix_id is not None:
            own = self.prefix_id[places]
            apart = own + copies * (int(self.prefix_id.max()) + 1)
            found = replace(found, prefix_id=np.where(own < 0, own, apart))
        n_of_trace = self.n_of_trace and round(factor * self.n_of_trace)
        return replace(found, n_of_trace=n_of_trace)

    def at(self, places: np.ndarray | slice) -> "Demand":
        """Return the requests at these places."""
        names = _COLUMNS if self.prefix_id is None else _COLUMNS + _PREFIX
        columns = {name: getattr(self, name)[places] for name in names}
        return replace(self, **columns, n_of_trace=None)

    def simulated(self) -> SimulatedRequests:
        """Return the requests as simulations take them."""
        lengths = self.input_tokens, self.output_tokens
        return SimulatedRequests.of(self.arrival_s, *lengths, self.prefix_id, self.prefix_tokens)

    def between(self, start_s: float, end_s: float) -> "Demand":
        """Return what arrives from `start_s` to before `end_s`; times count from `start_s`."""
        part = self.at(slice(*np.searchsorted(self.arrival_s, [start_s, end_s])))
        arrival_s = part.arrival_s - start_s
        return replace(part, arrival_s=arrival_s, duration_s=end_s - start_s)

    def busiest(self, span_s: float) -> tuple[float, int]:
        """Return the start and the requests of the fullest bin, as `arrival_measures` has them."""
        counts = np.bincount((self.arrival_s // span_s).astype(int))
        place = int(counts.argmax())
        return place * span_s, int(counts[place])

    def facts(self) -> dict[str, Any]:
        """Return its figures, for an answer."""
        gaps = np.diff(self.arrival_s)
        return {
            "name": self.name,
            "n_requests": self.n_of_trace or self.n,
            "n_simulated": self.n,
            "n_failed": self.n_failed,
            "duration_s": self.duration_s,
            "start_time": self.start_time.isoformat() if self.start_time else None,
            "rate_rps": self.rate_rps,
            "gap_cv": float(gaps.std() / gaps.mean()) if gaps.sum() > 0 else None,
            "mean_input_tokens": float(self.input_tokens.mean()),
            "mean_output_tokens": float(self.output_tokens.mean()),
            "longest_request_tokens": int((self.input_tokens + self.output_tokens).max()),
            "busiest": {f"{span_s}s": self.busiest(span_s)[1] for span_s in _BURSTS_S},
        }

    def notes(self, has_prefix_caching: bool | None) -> list[str]:
        """Return what an answer says of how the trace was read, and (None: not) of prefixes."""
        notes = [] if has_prefix_caching is None else prefix_notes(self, has_prefix_caching)
        if self.clock_step_s is not None:
            notes.append(
                f"The clock of {self.name} has steps of {duration_words(self.clock_step_s)}: "
                "requests of one stamp are spread over the step at random."
            )
        if self.factor != 1:
            how = f"further copies are shifted by up to {SHIFT_S:g} s and share no prefix"
            how = how if self.factor > 1 else "they are drawn at random"
            times = f"{self.factor:g} times the requests of {self.name} arrive"
            notes.append(f"{times}, on the same clock: {how}.")
        return notes


class Traffic(Protocol):
    """Draws a demand: each seed is another day of the same traffic."""

    def drawn(self, seed: int) -> Demand:
        """Return the demand of a seed; for a trace 0 is the trace itself."""


class TraceTraffic(NamedTuple):
    """A trace's own arrivals. Another seed shuffles the lengths within each window."""

    demand: Demand
    window_s: float | None

    def drawn(self, seed: int) -> Demand:
        """Return the trace for seed 0, else with the lengths of each window shuffled."""
        demand = self.demand
        if seed == 0:
            return demand
        window = np.floor(demand.arrival_s / (self.window_s or np.inf))
        order = np.lexsort((np.random.default_rng(seed).random(demand.n), window))
        return replace(demand.at(order), arrival_s=demand.arrival_s, n_of_trace=demand.n_of_trace)


class DrawnTraffic(NamedTuple):
    """Requests and arrivals that are drawn."""

    name: str
    """Of the requests, and how they arrive."""
    requests: Callable[..., pd.DataFrame]
    """Draws as `RequestModel.sample` does."""
    arrivals: Arrivals
    duration_s: float
    first_seed: int = 0
    """Used for seed 0; other seeds count from it."""

    def drawn(self, seed: int) -> Demand:
        """Return the requests drawn with a seed. Raises InputError if none arrives."""
        seed += self.first_seed
        frame = draw_trace(self.requests, self.arrivals, seed=seed, duration_s=self.duration_s)
        if frame.empty:
            fix = "give a higher --request-rate, or a longer --duration"
            problem = f"no request arrives in {self.duration_s:g} s"
            raise InputError(problem, field="--request-rate", fix=fix)
        arrival_s, inputs, outputs = (frame[name].to_numpy() for name in _COLUMNS)
        return Demand(self.name, arrival_s, inputs, np.maximum(outputs, 1), self.duration_s)


def traffic_at_rate(
    rate_rps: float,
    workload: str | Path | None,
    lengths: Requests | None,
    *,
    alpha: float | None = None,
    duration_s: float | None = None,
    first_seed: int = 0,
) -> DrawnTraffic:
    """Return requests that arrive at a rate.

    Args:
        rate_rps: mean rate.
        workload: its requests, and the arrivals of its trace if it has one, at that mean rate.
        lengths: of the requests, in place of the workload's.
        alpha: shape of Gamma gaps in place of the workload's arrivals; 1 (Poisson) without any.
        duration_s: by default an hour, or the time of `MOST_REQUESTS`.
        first_seed: as in `DrawnTraffic`.
    """
    check_positive(rate_rps=rate_rps)
    model = None
    if alpha is None and workload is not None and Path(workload).is_dir():
        model = read_stored(workload)["model"]
    if workload is not None and model is not None:
        arrivals = arrivals_at_rate(workload, FITTED, rate_rps)
        manner = f"its trace's arrivals ({model})"
    else:
        arrivals = Gamma(rate_rps, 1.0 if alpha is None else alpha)
        manner = "Poisson arrivals" if arrivals.alpha == 1 else f"Gamma gaps of shape {alpha:g}"
    if lengths is not None:
        sample, name = lengths_of(lengths), "given lengths"
    else:
        sample, name = open_workload(workload or "").sample, id_of(Path(workload or "").name)
    duration_s = duration_s or min(3600.0, MOST_REQUESTS / rate_rps)
    return DrawnTraffic(f"{name} with {manner}", sample, arrivals, duration_s, first_seed)


def demand_of_trace(
    trace: str | Path,
    *,
    window_s: float,
    llm: str | None = None,
    service: str | None = None,
    has_prefixes: bool = False,
    factor: float = 1.0,
) -> Demand:
    """Read the requests of a normalised trace, of one LLM or service where given.

    With a `factor` there are so many times as many (see `Demand.multiplied`).

    A trace is counted window by window, and only what is simulated is read. Of more than
    `MOST_REQUESTS` the busiest windows are kept, by requests or tokens, each with the one before
    it, in which queues build up. With `has_prefixes` the demand has those of its `hash_ids`.

    Raises:
        InputError: the file is not a normalised trace, has no request that succeeded, or all of
            them arrive at one moment.
    """
    require_trace(trace)
    rows = parquet_rows(trace, has_row_number=True)
    chosen = {"llm": llm, "service": service}
    where = " AND ".join(
        f"{name} = {sql_text(value)}" for name, value in chosen.items() if value is not None
    )
    of_group = f"{rows} WHERE {where or 'true'}"
    with duckdb.connect() as database, reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN):
        database.execute(_SETTINGS)
        counts = database.execute(_COUNTED.format(window_s=window_s, rows=of_group)).df()
        n_failed = int(counts["n_failed"].sum())
        counts = counts[counts["n"] > 0]
        windows = _busiest_windows(counts, MOST_REQUESTS / max(factor, 1.0))
        kept = "" if windows is None else f"AND floor(arrival_s / {window_s}) IN {windows}"
        query = f"""SELECT {", ".join(_COLUMNS)}, file_row_number AS row FROM {of_group}
            AND status = 'ok' {kept} ORDER BY arrival_s, row"""
        read = database.execute(query).fetchnumpy() if len(counts) else {}
    n = int(counts["n"].sum())
    if n < 2 or not counts["last_s"].max() > counts["first_s"].min():
        problem = f"{n} requests that succeeded" + (" at one moment" if n > 1 else "")
        fix = "give a trace with two or more, or another --trace-llm or --trace-service"
        raise InputError(problem, file=trace, field="arrival_s", fix=fix)
    prefix_id = prefix_tokens = None
    if has_prefixes and len((blocks := read_blocks(trace)).ids):
        prefix_id, prefix_tokens = blocks.at(read["row"]).chains()
    times, clock_step_s = on_fine_clock(np.asarray(read["arrival_s"], float))
    arrival_s = np.concatenate([*batches_of(times)])
    demand = Demand(
        id_of(Path(trace).stem),
        arrival_s,
        np.asarray(read["input_tokens"], np.int64),
        np.maximum(read["output_tokens"], 1).astype(np.int64),
        max(float(counts["last_s"].max()), float(arrival_s[-1])),
        start_time(trace),
        n if windows is not None else None,
        n_failed,
        prefix_id,
        prefix_tokens,
        clock_step_s,
    )
    if factor * demand.n > MOST_COPIED:
        problem = f"{factor:g} times the {demand.n:,} requests of the busiest window are too many"
        fix = f"give a smaller factor: a simulation takes {MOST_COPIED:,}"
        raise InputError(problem, file=trace, field="--traffic", fix=fix)
    return demand.multiplied(factor, window_s)


_COUNTED = """SELECT floor(arrival_s / {window_s})::BIGINT AS place,
    count(*) FILTER (status = 'ok') AS n, count(*) FILTER (status <> 'ok') AS n_failed,
    sum(input_tokens) FILTER (status = 'ok') AS inputs,
    sum(output_tokens) FILTER (status = 'ok') AS outputs,
    min(arrival_s) AS first_s, max(arrival_s) AS last_s FROM {rows} GROUP BY 1 ORDER BY 1"""


def _busiest_windows(counts: pd.DataFrame, most: float) -> tuple[int, ...] | None:
    """Return the windows to simulate, of `most` requests together or one; None for all."""
    if counts["n"].sum() <= most:
        return None
    n = counts.set_index("place")["n"]
    load = counts.set_index("place")[["n", "inputs", "outputs"]]
    ranked = (load / load.max()).max(axis=1).sort_values(ascending=False, kind="stable")
    kept, total = set[int](), 0
    for place in ranked.index:
        more = {place - 1, place} - kept
        total += sum(n.get(each, 0) for each in more)
        if kept and total > most:
            break
        kept |= more
    return tuple(int(each) for each in sorted(kept))


def requests_of_demand(demand: Demand) -> Requests:
    """Return the mean lengths of the requests, as a question has them.

    The longest need not fit: a simulated server refuses them one by one.
    """
    means = (float(demand.input_tokens.mean()), float(demand.output_tokens.mean()))
    return Requests(*(Length(mean, mean) for mean in means))


def lengths_of(requests: Requests) -> Callable[..., pd.DataFrame]:
    """Return a function that draws requests of these lengths: lognormal by mean and p99.

    With z the normal's 99th percentile, log(p99 / mean) = z sigma - sigma^2 / 2.
    """
    z = NormalDist().inv_cdf(0.99)

    def lengths(length: Length, n: int, rng: np.random.Generator) -> np.ndarray:
        sigma = z - max(z**2 - 2 * math.log(length.high / length.mean), 0.0) ** 0.5
        drawn = length.mean * np.exp(sigma * rng.standard_normal(n) - sigma**2 / 2)
        return np.asarray(np.maximum(drawn.round(), 1).astype(np.int64))

    def sample(n: int, *, seed: Seed) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        drawn = [lengths(each, n, rng) for each in requests]
        return pd.DataFrame(dict(zip(_COLUMNS[1:], drawn, strict=True)))

    return sample


def prefix_notes(demand: Demand, has_prefix_caching: bool) -> list[str]:
    """Return how much prefix caching saves, in a sentence; none if prefixes are not known."""
    if demand.prefix_id is None:
        return []
    tokens = pd.Series(demand.prefix_tokens)
    before = tokens.groupby(demand.prefix_id).transform(lambda own: own.cummax().shift())
    again = np.minimum(before.fillna(0), tokens).sum() / demand.input_tokens.sum()
    if has_prefix_caching:
        return [
            f"Prefix caching is on: {percent(again)} of the input tokens repeat the beginning of "
            "an earlier request by the trace's hash_ids, and hit while they are kept."
        ]
    return [
        f"Prefix caching is off: {percent(again)} of the input tokens, which repeat the beginning "
        "of an earlier request by the trace's hash_ids, are computed again."
    ]

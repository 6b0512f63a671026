"""What arrives: the requests of a trace, or those drawn from a workload at a rate."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading
from sextant.base.sheets import id_of_file_name
from sextant.pages.words import duration_words, percent, plural
from sextant.trace.choice import ALL_REQUESTS, TraceChoice, chosen_requests, mixture_notes
from sextant.trace.trace_format import HASH_IDS, parquet_rows, require_trace
from sextant.workload import generators
from sextant.workload.arrivals import on_fine_clock
from sextant.workload.draw import draw_trace, open_workload
from sextant.workload.generators import Arrivals, Gamma
from sextant.workload.lengths import RequestLengths, length_sampler
from sextant.workload.profiles import start_time
from sextant.workload.requests import (
    COLUMNS,
    Prefixes,
    RequestStream,
    SteadyTraffic,
    TraceOrigin,
)
from sextant.workload.shared_blocks import read_shared_blocks
from sextant.workload.trace_arrivals import FITTED, arrivals_at_rate, read_stored, read_turns

MOST_READ = 30_000_000
"""Requests of a trace, times the factor on its traffic; they take 40 to 100 bytes each."""
MOST_BY_DEFAULT = 200_000  # requests at a rate, where no duration is stated
_SETTINGS = "SET memory_limit = '700MB'; SET enable_progress_bar = false"


class TraceTraffic(NamedTuple):
    """A trace's own arrivals. Another seed shuffles the lengths within each window."""

    demand: RequestStream
    window_s: float | None

    def drawn(self, seed: int) -> RequestStream:
        """Return the trace for seed 0, else with the lengths of each window shuffled."""
        demand = self.demand
        if seed == 0 or demand.turns is not None:  # turns of a session grow
            return demand
        window = np.floor(demand.arrival_s / (self.window_s or np.inf))
        order = np.lexsort((np.random.default_rng(seed).random(demand.n), window))
        return replace(demand.at(order), arrival_s=demand.arrival_s, part=demand.part)

    def scaled(self, factor: float) -> "TraceTraffic":
        """Return the trace with `factor` times as many requests (`multiplied_demand`)."""
        return self._replace(demand=multiplied_demand(self.demand, factor, self.window_s))

    def peak(self) -> "TraceTraffic":
        """Return the busiest windows alone where there are many requests: what fails there fails.

        However many times as many requests arrive, these windows stay the busiest.
        """
        return self._replace(demand=self.demand.peak(self.window_s))

    def busiest_part(self) -> "TraceTraffic":
        """Return the traffic, of a long trace its busiest windows alone (see `RequestStream`)."""
        return self._replace(demand=self.demand.busiest_part(self.window_s))


class DrawnTraffic(NamedTuple):
    """Requests and arrivals that are drawn."""

    name: str  #: Of the requests, and how they arrive.
    requests: Callable[..., pd.DataFrame]  #: Draws as `RequestModel.sample` does.
    arrivals: Arrivals
    duration_s: float
    first_seed: int = 0  #: Used for seed 0; other seeds count from it.

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests drawn with a seed. Raises InputError if none arrives."""
        n = round(self.arrivals.mean_rate_rps * self.duration_s)
        is_typical = seed == 0 and isinstance(self.arrivals, Gamma) and n > 0
        extent: dict[str, Any] = {"n": n + 1} if is_typical else {"duration_s": self.duration_s}
        frame = draw_trace(self.requests, self.arrivals, seed=seed + self.first_seed, **extent)
        arrival_s, inputs, outputs = (frame[name].to_numpy() for name in COLUMNS)
        if is_typical:  # as many as the rate says; the next one would come at the end
            arrival_s = (arrival_s * (self.duration_s / arrival_s[-1]))[:-1]
            inputs = inputs[:-1]
            outputs = outputs[:-1]
        if not len(arrival_s):
            fix = "give a higher --request-rate, or a longer --duration"
            problem = f"no request arrives in {self.duration_s:g} s"
            raise InputError(problem, field="--request-rate", fix=fix)
        return RequestStream(self.name, arrival_s, inputs, np.maximum(outputs, 1), self.duration_s)

    def scaled(self, factor: float) -> "DrawnTraffic":
        """Return the same requests at `factor` times the rate."""
        return self._replace(arrivals=self.arrivals.scaled(factor))

    def steady(self) -> SteadyTraffic | None:
        """Return the requests of one replica, None where they do not arrive at a steady rate."""
        if not isinstance(self.arrivals, Gamma):
            return None
        rate_rps = self.arrivals.mean_rate_rps
        alpha = self.arrivals.alpha
        return SteadyTraffic(self.name, self.requests, rate_rps, alpha, self.first_seed)


def traffic_at_rate(
    rate_rps: float,
    workload: str | Path | None,
    lengths: RequestLengths | None,
    *,
    alpha: float | None = None,
    duration_s: float | None = None,
    first_seed: int = 0,
) -> DrawnTraffic:
    """Return requests that arrive at a mean rate, for an hour or the time of `MOST_BY_DEFAULT`.

    Args:
        rate_rps: requests a second.
        workload: a stored workload. Its requests are drawn, and they arrive as its trace did.
        lengths: of the requests, in place of the workload's.
        alpha: shape of Gamma gaps between arrivals, in place of the trace's arrivals. Without both
            it is 1 (Poisson).
        duration_s: of all requests; None: as above.
        first_seed: used for seed 0.
    """
    generators.check_positive(rate_rps=rate_rps)
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
        sample = length_sampler(lengths)
        name = "given lengths"
    else:
        sample = open_workload(workload or "").sample
        name = id_of_file_name(Path(workload or "").name)
    duration_s = duration_s or min(3600.0, MOST_BY_DEFAULT / rate_rps)
    return DrawnTraffic(f"{name} with {manner}", sample, arrivals, duration_s, first_seed)


_COUNTED = """SELECT count(*) FILTER (status = 'ok') AS n_ok,
    count(*) FILTER (status <> 'ok') AS n_failed, min(arrival_s) FILTER (status = 'ok') AS first_s,
    max(arrival_s) FILTER (status = 'ok') AS last_ok_s, max(arrival_s) AS last_s FROM {rows}"""
"""Makes the row of `_Counts`."""


class _Counts(NamedTuple):
    """How many requests a trace has, and when they arrive."""

    n_ok: int
    n_failed: int
    first_s: float | None
    """Of the requests that succeeded; None: there are none."""
    last_ok_s: float | None
    last_s: float | None
    """Of all requests."""


def demand_of_trace(
    trace: str | Path,
    *,
    window_s: float,
    choice: TraceChoice = ALL_REQUESTS,
    has_prefixes: bool = False,
    has_turns: bool = False,
    factor: float = 1.0,
) -> RequestStream:
    """Read the requests of a normalised trace that succeeded, all of them.

    Args:
        trace: the file.
        window_s: length of a window; a factor multiplies the requests of each.
        choice: read the requests of one LLM or service alone.
        has_prefixes: whether the demand has the prefixes that `hash_ids` tell.
        has_turns: whether turns of sessions wait for answers (`read_turns`).
        factor: on the number of requests.

    Raises:
        InputError: not a normalised trace, all that succeeded came at one moment, or there are
            more than `MOST_READ` requests, times the factor.
    """
    with chosen_requests(trace, choice) as part:
        demand = _demand_of(part, has_prefixes, has_turns, factor)
    notes = tuple(mixture_notes(trace, choice))
    demand = replace(demand, origin=replace(demand.origin, mixture=notes))
    return multiplied_demand(demand, factor, window_s)


def _demand_of(trace: Path, has_prefixes: bool, has_turns: bool, factor: float) -> RequestStream:
    """Read all requests of a trace that succeeded; `factor` is for the limit of their number."""
    columns = require_trace(trace).schema_arrow.names
    of_group = f"{parquet_rows(trace, has_row_number=True)} WHERE true"
    with duckdb.connect() as database, reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN):
        database.execute(_SETTINGS)
        (counted,) = database.execute(_COUNTED.format(rows=of_group)).fetchall()
        counts = _Counts(*counted)
        _check_counts(counts, factor, trace)
        has_prefixes = has_prefixes and HASH_IDS in columns
        names = [*COLUMNS, "file_row_number"] if has_prefixes or has_turns else COLUMNS
        query = f"""SELECT {", ".join(names)} FROM {of_group}
            AND status = 'ok' ORDER BY arrival_s, file_row_number"""
        read = database.execute(query).fetchnumpy()  # a column is freed where it is converted

    row = read.get("file_row_number", np.empty(0, np.int64))
    prefixes = None
    if has_prefixes and len((blocks := read_shared_blocks(trace)).ids):
        prefixes = Prefixes(*blocks.at(row).chains())
    arrival_s, clock_step_s = on_fine_clock(np.asarray(read.pop("arrival_s"), float))
    return RequestStream(
        id_of_file_name(Path(trace).stem),
        arrival_s,
        np.asarray(read.pop("input_tokens"), np.int64),
        np.maximum(read.pop("output_tokens"), 1).astype(np.int64),
        max(counts.last_s or 0.0, float(arrival_s[-1])),
        prefixes,
        read_turns(trace, arrival_s, row) if has_turns else None,
        origin=TraceOrigin(
            is_trace=True,
            start_time=start_time(trace),
            n_ok=counts.n_ok,
            n_failed=counts.n_failed,
            clock_step_s=clock_step_s,
        ),
    )


def _check_counts(counts: _Counts, factor: float, trace: str | Path) -> None:
    """Raise InputError where a trace has too few requests, or with the factor too many."""
    n = counts.n_ok
    if n < 2 or counts.first_s == counts.last_ok_s:
        problem = f"{n} of its requests succeeded" if n < 2 else "all requests came at one moment"
        fix = "give a trace with two or more, or another --llm-in-trace or --service-in-trace"
        raise InputError(problem, file=trace, field="arrival_s", fix=fix)
    if factor * n > MOST_READ:
        times = "" if factor == 1 else f"{factor:g} times "
        problem = f"{times}{n:,} requests; {MOST_READ:,} are read at most"
        fix = "give some days of the trace, one --llm-in-trace or --service-in-trace"
        fix += ", or a smaller --traffic" if factor > 1 else ""
        raise InputError(problem, file=trace, field="--trace", fix=fix)


def multiplied_demand(
    demand: RequestStream, factor: float, block_s: float | None = None
) -> RequestStream:
    """Return `factor` times as many requests on the same clock (see `generators.multiplied`).

    Copies share no prefix. Windows of `block_s` have their requests times the factor. Sessions are
    copied whole: the turns of a copy wait for its own answers. InputError: none is left.
    """
    if factor == 1:
        return demand
    arrival_s, places, copies = generators.multiplied(
        demand.arrival_s,
        factor,
        block_s=block_s or generators.BLOCK_S,
        group=None if demand.turns is None else demand.turns.session,
    )
    if not len(arrival_s):
        problem = f"{factor:g} times {demand.n:,} requests leave none"
        raise InputError(problem, field="--traffic", fix="give a larger factor, or a longer trace")
    copied = demand.at(places).as_copies_of(demand, places, copies)
    return replace(
        copied,
        arrival_s=arrival_s,
        duration_s=max(demand.duration_s, float(arrival_s[-1])),
        origin=replace(demand.origin, factor=factor * demand.origin.factor),
        part=demand.part and demand.part.times(factor),
    )


def demand_notes(demand: RequestStream, has_prefix_caching: bool | None) -> list[str]:
    """Return what an answer says of how the trace was read, and (None: not) of prefixes."""
    origin = demand.origin
    notes = [*origin.mixture]
    if has_prefix_caching is not None and demand.prefixes is not None:
        again = percent(demand.repeated_share)
        whose = "an earlier request by the trace's hash_ids"
        notes.append(
            f"Prefix caching is on: {again} of the input tokens repeat the beginning of {whose}, "
            "and hit while they are kept."
            if has_prefix_caching
            else f"Prefix caching is off: {again} of the input tokens, which repeat the beginning "
            f"of {whose}, are computed again."
        )
    if demand.turns is not None:
        n = len(np.unique(demand.turns.session))
        n_turns = int((demand.turns.parent >= 0).sum())
        notes.append(
            f"{n_turns:,} of {demand.n:,} requests are turns of {plural(n, 'session')} that wait "
            "for an answer and think as long as in the trace, so faster servers get more at once."
        )
    if (long := origin.long_turns) is not None:
        following = plural(long.n_following, "turn")
        notes.append(
            f"{long.n_too_long:,} of {long.n_turns:,} turns of the trace have more than "
            f"{long.longest_tokens:,} tokens (--max-model-len, or the LLM's context): these are "
            f"left out, with {following} that would wait for them."
        )
    if origin.clock_step_s is not None:
        notes.append(
            f"The clock of {demand.name} has steps of {duration_words(origin.clock_step_s)}: "
            "requests of one stamp are spread over the step at random."
        )
    if demand.part is not None:
        part = demand.part
        notes.append(
            f"Of {demand.name}, {demand.n:,} of {demand.n_whole:,} requests are simulated: the "
            f"busiest {len(part.windows):,} of {part.n_windows:,} windows of "
            f"{duration_words(part.window_s)}, taken from each hour of the day, each with the time "
            "before it. The other windows are not judged."
        )
    if origin.factor != 1:
        whose = "copies" if demand.turns is None else "copies of sessions"
        how = f"further {whose} are shifted by up to {generators.SHIFT_S:g} s and share no prefix"
        how = how if origin.factor > 1 else "they are drawn at random"
        times = f"{origin.factor:g} times the requests of {demand.name} arrive"
        notes.append(f"{times}, on the same clock: {how}.")
    if origin.speed != 1:
        notes.append(f"Time runs {origin.speed:g} times as fast (--speed).")
    return notes

"""Latency limits and the load to serve within them: a row of `slos.tsv`; percentiles."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.sheets import Id, check_fields, load_sheet
from sextant.facts.answer_times import answer_ms, rate_of_users

PERCENTILE_PREFIX = {50: "median", 90: "p90", 95: "p95", 99: "p99"}
"""How the columns of a `point` name a percentile."""
ENDS = ("lo", "hi")  # of the 90% interval of a latency, measured or predicted

_TTFT = {50: 1.0, 90: 1.65, 95: 1.91, 99: 2.51}
_TIMES_MEDIAN = {
    "ttft_ms": _TTFT,
    "nttft_ms": _TTFT,
    "itl_ms": (_GAP := {50: 1.0, 90: 1.17, 95: 1.43, 99: 2.50}),
    "tpot_ms": _GAP,
}
"""Percentiles of a first-token and a per-token latency, as multiples of their median.

Medians over the points of sources that publish both. First token: TTFT of LLM-Pilot's
characterization (528 points; its p95 interpolated as `between` does). Per token: ITL of the
ML.ENERGY leaderboard, task lm-arena-chat (vLLM 0.11.1 on H100 and B200). TPOT, a mean over each
request, spreads less than ITL, so for it the factors err on the safe side.
"""
METRICS = {"ttft": "TTFT", "nttft": "nTTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E"}
"""The latencies that may have a limit, and their names."""
_LOADS = ("users", "request_rate_rps", "trace_id")
RATES_RPS = (1e-6, 1e6)
"""The least and the most requests a second that may be asked about."""
_LENGTHS = ("input_tokens", "output_tokens")
_FIRST = "nttft_ms"
_PER_TOKEN = "itl_ms"
_OF_TARGET = {_FIRST: ("ttft", "nttft"), _PER_TOKEN: ("itl", "tpot")}
MAX_FAILED = 0.01  # largest share of requests that may fail, by default
ALIKE = 1.25  # requests are alike if their mean lengths differ by at most this factor
_Ms = Annotated[float, Field(ge=1e-6, le=1e9)]
_Percentile = Literal[50, 90, 95, 99]
_Tokens = Annotated[float, Field(ge=1, le=1e8)]


def end_column(column: str, end: str) -> str:
    """Return the column of an end of an interval, e.g. `p90_itl_lo_ms` of `p90_itl_ms`."""
    return f"{column.removesuffix('_ms')}_{end}_ms"


def factor(target: str, percentile: int, wanted: int) -> float:
    """Return the ratio of a latency at percentile `wanted` to it at `percentile`; NaN: unknown."""
    if target not in _TIMES_MEDIAN:
        return 1.0 if percentile == wanted else math.nan
    return _TIMES_MEDIAN[target][wanted] / _TIMES_MEDIAN[target][percentile]


def between(low: int, high: int, wanted: int) -> float:
    """Return the weight of percentile `high` in the logarithm of one in between.

    It is exact if the latency is lognormal.
    """
    z = NormalDist().inv_cdf
    first, last, inside = (z(percentile / 100) for percentile in (low, high, wanted))
    return (inside - first) / (last - first)


class Limit(NamedTuple):
    """A limit of a latency: the value at this percentile is at most `limit_ms`."""

    limit_ms: float
    percentile: int


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """Latencies of requests, measured ones or limits."""

    nttft_ms: _Ms | None = None
    """TTFT per input token in milliseconds, above 0: 0.000001 to 1,000,000,000"""
    itl_ms: _Ms | None = None
    """inter-token latency in milliseconds, above 0: 0.000001 to 1,000,000,000"""
    ttft_ms: _Ms | None = None  #: TTFT in milliseconds, above 0: 0.000001 to 1,000,000,000
    tpot_ms: _Ms | None = None
    """time per output token after the first in ms, above 0: 0.000001 to 1,000,000,000"""
    e2e_ms: _Ms | None = None
    """time to the last token in milliseconds, above 0: 0.000001 to 1,000,000,000"""
    input_tokens: _Tokens | None = None
    """mean input tokens of the requests, 1 to 100,000,000; with output_tokens"""
    output_tokens: _Tokens | None = None
    """mean output tokens of the requests, 1 to 100,000,000, with input_tokens"""


@dataclass(frozen=True, kw_only=True)
class Limits(Latencies):
    """Limits of latencies, each at its percentile, and the load within them."""

    percentile: _Percentile | None = None  #: percentile that limits hold for: 50, 90, 95 or 99
    ttft_percentile: _Percentile | None = None
    """percentile of ttft_ms, where it is not that of all limits: 50, 90, 95 or 99"""
    nttft_percentile: _Percentile | None = None
    """percentile of nttft_ms, where it is not that of all limits: 50, 90, 95 or 99"""
    itl_percentile: _Percentile | None = None
    """percentile of itl_ms, where it is not that of all limits: 50, 90, 95 or 99"""
    tpot_percentile: _Percentile | None = None
    """percentile of tpot_ms, where it is not that of all limits: 50, 90, 95 or 99"""
    e2e_percentile: _Percentile | None = None
    """percentile of e2e_ms, where it is not that of all limits: 50, 90, 95 or 99"""
    users: Annotated[int, Field(ge=1, le=10**8)] | None = None
    """concurrent users to serve, 1 to 100,000,000"""
    request_rate_rps: Annotated[float, Field(ge=RATES_RPS[0], le=RATES_RPS[1])] | None = None
    """requests a second to serve, 0.000001 to 1,000,000"""


@dataclass(frozen=True)
class SLO(Limits):
    """config/slos.tsv: each row is one SLO: all limits hold while the load is served.

    The load is `users` (at once), `request_rate_rps`, or the traffic of `trace_id`; for a trace,
    replicas are found by simulation alone. Latencies are predicted as nTTFT and ITL, from which the
    other metrics follow (`latencies`). Stated mean lengths replace the workload's. InputError: no
    limit, a limit without a percentile, not exactly one load, or fields that contradict each other.
    """

    slo_id: Id  #: name of the SLO: 1 to 100 visible characters
    trace_id: Id | None = None
    """trace of traces.tsv whose traffic to serve: replicas are found by simulation"""
    llm: str | None = None
    """with trace_id: the LLM of the trace whose requests to serve; empty: all"""
    service: str | None = None
    """with trace_id: the service of the trace whose requests to serve; empty: all"""
    goodput: Annotated[float, Field(gt=0, le=1)] | None = None
    """with a trace or a rate: least share of requests answered within all limits, above 0 to 1"""
    max_failed: Annotated[float, Field(ge=0, le=1)] | None = None
    """largest share of requests that may fail (refused, timed out), 0 to 1; default 0.01"""
    window_s: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """with a trace or a rate: windows in which the SLO holds, in s; 0: the whole time; default: 300
    with a trace, the whole time with a rate"""

    def __post_init__(self) -> None:
        check_fields(SLO, self.facts(), "")  # a sheet names itself
        names = self.facts().keys()
        lengths = ", ".join(_LENGTHS)

        n_loads = len(names & set(_LOADS))
        if n_loads != 1:
            problem = f"{'two loads are' if n_loads else 'no load is'} given"
            raise InputError(problem, field=", ".join(_LOADS), fix="give one of them")

        if self.users and (unsimulated := [n for n in ("goodput", "window_s") if n in names]):
            problem = "users have no arrivals to simulate"
            fix = "give trace_id or request_rate_rps in place of users, or leave it empty"
            raise InputError(problem, field=unsimulated[0], fix=fix)

        if not self.limits:
            fix = f"give one or more of {', '.join(f'{name}_ms' for name in METRICS)}"
            raise InputError("no limit is given", field="nttft_ms, itl_ms", fix=fix)

        for name, limit in self.limits.items():
            if limit.percentile is None:
                fix = f"give `percentile` for all limits, or `{name}_percentile`"
                raise InputError(f"{name}_ms has no percentile", field="percentile", fix=fix)

        if (self.input_tokens is None) != (self.output_tokens is None):
            problem = "one length of the requests alone is given"
            fix = "give both, or neither: then they are those of the workload"
            raise InputError(problem, field=lengths, fix=fix)

        if self.trace_id is None and (chosen := [n for n in ("llm", "service") if n in names]):
            problem = "only a trace has LLMs and services"
            raise InputError(problem, field=chosen[0], fix="leave it empty, or give trace_id")

        if self.lengths and self.trace_id is not None:
            problem = "a trace has requests of its own"
            raise InputError(problem, field=lengths, fix="leave them empty")

    def facts(self) -> dict[str, Any]:
        """Return the fields that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def allowed_failures(self) -> float:
        """The largest share of requests that may fail."""
        return MAX_FAILED if self.max_failed is None else self.max_failed

    @cached_property
    def limits(self) -> dict[str, Limit]:
        """The limits that are set, by metric."""
        return limits_of(asdict(self))

    @cached_property
    def lengths(self) -> dict[str, float]:
        """The mean input and output tokens of the requests; empty: they are the workload's."""
        lengths = {name: getattr(self, name) for name in _LENGTHS}
        return {} if None in lengths.values() else lengths

    def is_of(self, lengths: np.ndarray) -> np.ndarray:
        """Return which mean lengths, shape (..., 2), are like the SLO's: all if it states none."""
        if not self.lengths:
            return np.ones(lengths.shape[:-1], dtype=bool)
        return are_alike(lengths, np.array([*self.lengths.values()]))

    @cached_property
    def percentiles(self) -> tuple[int, int]:
        """The highest percentiles of the limits on the first token, and on the later tokens."""
        limits = self.limits
        overall = max(limit.percentile for limit in limits.values())
        e2e = limits["e2e"].percentile if "e2e" in limits else overall
        first, per_token = (
            max((limits[name].percentile for name in names if name in limits), default=e2e)
            for names in _OF_TARGET.values()
        )
        return first, per_token

    @property
    def first_token(self) -> str:
        """The metric of the first token that has the limit: `nttft`, else `ttft`."""
        is_absolute = self.ttft_ms is not None or self.e2e_ms is not None
        return "ttft" if is_absolute and self.nttft_ms is None else "nttft"

    @property
    def target_limits_ms(self) -> tuple[float | None, float | None]:
        """The limits of nTTFT and of ITL or TPOT: predictors learn to be accurate near them."""
        gaps = [limit for limit in (self.itl_ms, self.tpot_ms) if limit is not None]
        return self.nttft_ms, min(gaps, default=None)

    @property
    def load(self) -> float:
        """The load to serve: users, or requests per second; a trace has none."""
        return self.request_rate_rps if self.users is None else self.users  # type: ignore[return-value]  # checked: one is set

    def carried(
        self, users: np.ndarray, latencies_ms: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Return the load that a replica carries with `users` in flight, shape (points,).

        It is the users, or for a rate users / E2E (Little's law; the median E2E of a request of
        mean lengths).
        """
        if self.users is not None:
            return users
        return np.asarray(rate_of_users(users, self.request_ms(latencies_ms, lengths)))

    def meets(self, latencies_ms: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return whether `latencies` meet all limits, shape (...); NaN does not."""
        return self.are_met(self.latencies(latencies_ms, lengths))

    def are_met(self, limited_ms: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return whether latencies meet all limits, given by metric; NaN does not."""
        met = [values <= self.limits[name].limit_ms for name, values in limited_ms.items()]
        return np.asarray(np.logical_and.reduce(met))

    def ratios(self, latencies_ms: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Return latency over limit, by metric; arguments as of `latencies`."""
        latencies = self.latencies(latencies_ms, lengths)
        return {name: values / self.limits[name].limit_ms for name, values in latencies.items()}

    def latencies(self, latencies_ms: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Return the latencies in ms that have a limit, at its percentile, by metric.

        TTFT is nTTFT × input tokens, TPOT is ITL, E2E is TTFT + (output tokens − 1) × ITL.
        `latencies_ms` are nTTFT and ITL at `percentiles`, `lengths` the mean input and output
        tokens, both of shape (..., 2).
        """
        latencies = {}
        for name, (_, percentile) in self.limits.items():
            if name == "e2e":
                latencies[name] = self.request_ms(latencies_ms, lengths, percentile)
                continue
            side = 0 if name in _OF_TARGET[_FIRST] else 1
            target = self._at(latencies_ms, side, percentile)
            latencies[name] = target * lengths[..., 0] if name == "ttft" else target
        return latencies

    def request_ms(
        self, latencies_ms: np.ndarray, lengths: np.ndarray, percentile: int = 50
    ) -> np.ndarray:
        """Return E2E at a percentile; arguments as of `latencies`."""
        first, gap = (self._at(latencies_ms, side, percentile) for side in (0, 1))
        return answer_ms(first * lengths[..., 0], gap, lengths[..., 1])

    def _at(self, latencies_ms: np.ndarray, side: int, percentile: int) -> np.ndarray:
        target = (_FIRST, _PER_TOKEN)[side]
        return latencies_ms[..., side] * factor(target, self.percentiles[side], percentile)

    def scaled(self, limits: float = 1.0, load: float = 1.0) -> "SLO":
        """Return the SLO with all limits, and the load, multiplied by these factors."""
        values = self.facts()
        for name in self.limits:
            values[f"{name}_ms"] *= limits
        if self.users is not None:
            return SLO(**values | {"users": max(1, round(self.users * load))})
        return SLO(**values | {"request_rate_rps": self.load * load})


def are_alike(lengths: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return whether mean lengths of requests, shape (..., 2), differ by `ALIKE` at most."""
    alike: np.ndarray = (np.abs(np.log(lengths / others)) <= math.log(ALIKE)).all(axis=-1)
    return alike


def limits_of(row: Mapping[str, Any]) -> dict[str, Limit]:
    """Return the limits that a row of a sheet, or of table `slo`, sets, by metric."""
    return {
        name: Limit(row[f"{name}_ms"], row.get(f"{name}_percentile") or row.get("percentile"))  # type: ignore[arg-type]  # SLO checks it
        for name in METRICS
        if row.get(f"{name}_ms") is not None
    }


def worst_limit(ratios: Mapping[str, Any]) -> str:
    """Return the metric of the largest `<metric>_ratio`; of equal ones the last in `METRICS`."""
    by_metric: dict[str, float] = {}
    for name in reversed(METRICS):
        ratio = ratios.get(f"{name}_ratio")
        if ratio is not None:
            by_metric[name] = ratio
    return max(by_metric, key=by_metric.__getitem__)


def slo_of(row: Mapping[str, Any], file: str | Path, line: int) -> SLO:
    """Return the SLO of a sheet's row; an error names file and line."""
    try:
        return SLO(**row)
    except InputError as error:
        raise error.at(file=file, row=line) from None


def load_slos(path: str | Path) -> dict[str, SLO]:
    """Read a sheet of SLOs."""
    rows = load_sheet(path, SLO, "slo_id")
    return {row["slo_id"]: slo_of(row, path, row.line) for row in rows}

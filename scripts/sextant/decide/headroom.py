"""What a deployment costs, how far it is from its limits, and what it bears with a replica less."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import jsonable
from sextant.decide.sizing import size_replicas
from sextant.facts.answer_times import rate_of_users
from sextant.facts.gpu import HOURS_PER_MONTH, token_prices
from sextant.facts.slo import ENDS, SLO
from sextant.points.frame import LENGTHS, TARGETS, is_refused, limited, replica_load


@dataclass(frozen=True)
class LimitRoom:
    """A latency at the load of a replica, and the room to its limit."""

    metric: str
    limit_ms: float
    percentile: int
    latency_ms: float | None
    lo_ms: float | None
    """Ends of the 90% interval; None: not known."""
    hi_ms: float | None
    headroom: float | None
    """1 - latency / limit."""
    load: float
    """The most that the replicas carry within this limit, in the SLO's unit."""
    is_most_tried: bool
    """Whether no more than `most_users_tried` a replica were tried."""
    most_users_tried: int | None = None
    """None: the load is simulated, and any may be tried."""

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        entry = _without(asdict(self), "most_users_tried")
        # Where some draws saturate, the end of the interval is infinite.
        return {name: jsonable(value) for name, value in entry.items()}


@dataclass(frozen=True)
class LostReplica:
    """What is left when one replica is lost."""

    replicas: int
    load: float
    """What they carry within the limits, in the SLO's unit."""
    is_kept: bool
    """Whether they meet the SLO."""
    probability_met: float | None = None
    """None: it is not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return _without(asdict(self), "probability_met")


@dataclass(frozen=True)
class Headroom:
    """Room, price and rate of replicas that share the load of an SLO."""

    users_per_replica: int
    level_users: int
    """The next number of users at which latencies are known: the latencies are of this load."""
    limits: tuple[LimitRoom, ...]
    load: float
    """The most that the replicas carry within all limits, in the SLO's unit."""
    is_most_tried: bool
    is_open: bool
    """Whether a latency has no upper end, so that a probability is a lower bound."""
    without_one: LostReplica | None
    """None of a single replica."""
    requests_per_s: float | None
    most_requests_per_s: float | None
    """The rate at the most load."""
    usd_per_hour: float
    usd_per_month: float
    """Of 730 hours."""
    usd_per_million_tokens: float | None
    """Of input and output alike; None where the requests' lengths are not known."""

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return {
            **asdict(self),
            "limits": [limit.to_dict() for limit in self.limits],
            "without_one": self.without_one and self.without_one.to_dict(),
        }


def _without(facts: dict[str, Any], optional: str) -> dict[str, Any]:
    """Return facts, without the optional one where it is not known."""
    return {name: value for name, value in facts.items() if name != optional or value is not None}


def measure_headroom(
    curve: pd.DataFrame, slo: SLO, replicas: int, usd_per_hour: float, rate_rps: float | None = None
) -> Headroom:
    """Return the headroom of replicas that share the load of an SLO.

    Args:
        curve: one LLM on one GPU profile, by rising `users`: `nttft_ms, itl_ms` and their bounds at
            the SLO's percentiles, the mean lengths of requests, `request_rate_rps` (NaN where it
            was not measured), and of measured points what `points.frame.judged` adds. Its first
            point has to meet the SLO.
        slo: limits and load.
        replicas: that share the load.
        usd_per_hour: of all replicas.
        rate_rps: requests a second that they serve; by default the SLO's rate, the rate that was
            measured at that level, or the rate by Little's law.
    """
    users = curve["users"].to_numpy()
    carried = replica_load(curve, slo)
    share = slo.load / replicas
    needed = np.maximum.accumulate(np.where(np.isfinite(carried), carried, 0.0))
    level = min(int(np.searchsorted(needed, share * (1 - 1e-9))), len(users) - 1)
    in_flight = users[level]
    if slo.users is not None:
        in_flight = min(int(np.ceil(share)), int(users[level]))

    limits = _limit_rooms(curve, slo, replicas, level)
    n_met = min(n for n, _ in limits) if limits else len(users)
    rooms = tuple(room for _, room in limits)
    load_of_one = float(carried[:n_met].max(initial=0))
    left = replicas - 1
    is_kept = bool(size_replicas(slo.load, load_of_one) <= left)
    without_one = LostReplica(left, left * load_of_one, is_kept) if left else None

    level_rps = _replica_rate(curve, slo, level)
    rate = rate_rps or slo.request_rate_rps or slo.load * level_rps / users[level]
    most_rps = load_of_one if slo.users is None else _replica_rate(curve, slo, max(n_met - 1, 0))
    lengths = curve[LENGTHS].to_numpy(float)[level]
    return Headroom(
        users_per_replica=int(in_flight),
        level_users=int(users[level]),
        limits=rooms,
        load=replicas * load_of_one,
        is_most_tried=n_met == len(users),
        is_open=any(room.hi_ms is None and room.lo_ms is not None for room in rooms),
        without_one=without_one,
        requests_per_s=_none_if_nan(float(rate)),
        most_requests_per_s=_none_if_nan(replicas * most_rps),
        usd_per_hour=usd_per_hour,
        usd_per_month=HOURS_PER_MONTH * usd_per_hour,
        usd_per_million_tokens=_none_if_nan(token_prices(usd_per_hour, rate, lengths)[0]),
    )


def _limit_rooms(
    curve: pd.DataFrame, slo: SLO, replicas: int, level: int
) -> list[tuple[int, LimitRoom]]:
    """Return for each limit how many points meet it, from the first on, and the room to it."""
    users = curve["users"].to_numpy()
    carried = replica_load(curve, slo)
    is_allowed = ~is_refused(curve, slo)
    low, high = (limited(curve, slo, end) for end in ENDS)
    rooms = []
    for metric, values in limited(curve, slo).items():
        limit_ms, percentile = slo.limits[metric]
        n_met = int(np.logical_and.accumulate((values <= limit_ms) & is_allowed).sum())
        room = LimitRoom(
            metric,
            limit_ms,
            percentile,
            latency_ms=_none_if_nan(values[level]),
            lo_ms=_none_if_nan(low[metric][level]),
            hi_ms=_none_if_nan(high[metric][level]),
            headroom=_none_if_nan(1 - values[level] / limit_ms),
            load=replicas * float(carried[:n_met].max(initial=0)),
            is_most_tried=n_met == len(users),
            most_users_tried=int(users[-1]),
        )
        rooms.append((n_met, room))
    return rooms


def _replica_rate(curve: pd.DataFrame, slo: SLO, level: int) -> float:
    """Return the requests a second of a replica at a level: measured, or by Little's law."""
    row = curve.iloc[level]
    if (measured := float(row["request_rate_rps"])) > 0:
        return measured
    lengths = curve[LENGTHS].to_numpy(float)[level]
    e2e_ms = slo.request_ms(row[TARGETS].to_numpy(float), lengths)
    return float(rate_of_users(row["users"], e2e_ms))


def _none_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


@dataclass(frozen=True)
class NextBest:
    """Another option beside the chosen one."""

    gpu_profile_id: str
    replicas: int
    users_per_replica: int | None
    usd_per_hour: float
    extra_usd_per_hour: float
    """What it costs more in all."""
    wins_below_usd_per_hour: float
    """The price of one of its replicas below which it is cheaper."""


def compare_options(chosen: Mapping[str, Any], option: Mapping[str, Any]) -> NextBest:
    """Return another option with the price at which it would win; both are rows of options."""
    return NextBest(
        option["gpu_profile_id"],
        option["replicas"],
        option["users_per_replica"],
        option["usd_per_hour"],
        # Rounded, as the prices are: 0.3 - 0.1 is not 0.2.
        extra_usd_per_hour=round(option["usd_per_hour"] - chosen["usd_per_hour"], 9),
        wins_below_usd_per_hour=round(chosen["usd_per_hour"] / option["replicas"], 9),
    )

"""Two pools for short and for long inputs, beside one pool for all."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.decide.simulated_sizing import SimulatedReplica, Sizing, size_profiles
from sextant.decide.sizing import probability_of
from sextant.decide.windows import Target
from sextant.workload.requests import RequestStream, Traffic


class _Part(NamedTuple):
    """Requests of some traffic on one side of an input length."""

    traffic: Traffic
    tokens: int
    is_long: bool

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a draw that are on this side."""
        demand = self.traffic.drawn(seed)
        return demand.at(np.flatnonzero((demand.input_tokens > self.tokens) == self.is_long))


def size_split(
    servers: Mapping[str, SimulatedReplica],
    traffic: Traffic,
    tokens: int,
    target: Target,
    confidence: float,
) -> dict[str, Any]:
    """Return the cheapest pool for inputs up to `tokens`, that for longer ones, and both together.
    `short` and `long` have `gpu_profile_id` and `replicas`, None where no number is likely enough;
    `usd_per_hour` and `probability_met` are of both, of draws in which both meet the target. Raises
    InputError: all requests are on one side."""
    demand = traffic.drawn(0)
    n_long = int((demand.input_tokens > tokens).sum())
    if not 0 < n_long < demand.n:
        problem = f"{n_long:,} of {demand.n:,} requests have more than {tokens:,} input tokens"
        fix = "give a length between those of the requests"
        raise InputError(problem, field="--split-tokens", fix=fix)
    best: dict[str, Sizing] = {}
    for name, is_long in (("short", False), ("long", True)):
        part = _Part(traffic, tokens, is_long)
        found = size_profiles(servers, part, target, confidence, has_rate=False)
        sized = [each for each in found.values() if each.replicas]
        if sized:
            best[name] = min(sized, key=lambda each: each.usd_per_hour or np.inf)
    row: dict[str, Any] = {"tokens": tokens, "usd_per_hour": None, "probability_met": None}
    for name in ("short", "long"):
        own = best.get(name)
        profile = own and own.server.profile.gpu_profile_id
        row[name] = {"gpu_profile_id": profile, "replicas": own and own.replicas}
    if len(best) == 2:
        needs = np.array([each.needs for each in best.values()])
        counts = np.array([[each.count] for each in best.values()])
        n_met = int((needs <= counts).all(axis=0).sum())
        row["usd_per_hour"] = sum(each.usd_per_hour or 0.0 for each in best.values())
        row["probability_met"] = float(probability_of(n_met, needs.shape[1]))
    return row

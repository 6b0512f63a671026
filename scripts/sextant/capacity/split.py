"""Two pools for short and for long inputs, beside one pool for all."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.capacity.answer import Split, SplitPool
from sextant.decide.profile_sizing import size_profiles
from sextant.decide.simulated_sizing import SimulatedReplica, Sizing, SizingSettings
from sextant.decide.sizing import probability_of
from sextant.decide.windows import Target
from sextant.workload.requests import RequestStream, Traffic


class _OneSide(NamedTuple):
    """Requests of some traffic on one side of an input length."""

    traffic: Traffic
    tokens: int
    is_long: bool

    def drawn(self, seed: int) -> RequestStream:
        """Return the requests of a draw that are on this side."""
        requests = self.traffic.drawn(seed)
        is_long = requests.input_tokens > self.tokens
        return requests.at(np.flatnonzero(is_long == self.is_long))


def size_split(
    servers: Mapping[str, SimulatedReplica],
    traffic: Traffic,
    tokens: int,
    target: Target,
    confidence: float,
) -> Split:
    """Return the cheapest pool for inputs up to `tokens`, and that for longer ones.

    The probability is that of draws in which both meet the target.

    Raises:
        InputError: all requests are on one side.
    """
    requests = traffic.drawn(0)
    n_long = int((requests.input_tokens > tokens).sum())
    if not 0 < n_long < requests.n:
        problem = f"{n_long:,} of {requests.n:,} requests have more than {tokens:,} input tokens"
        fix = "give a length between those of the requests"
        raise InputError(problem, field="--split-tokens", fix=fix)

    short, long = (
        _cheapest(servers, _OneSide(traffic, tokens, is_long), target, confidence)
        for is_long in (False, True)
    )
    pools = [_pool(sizing) for sizing in (short, long)]
    if short is None or long is None:
        return Split(tokens, None, None, *pools)
    needs = np.array([short.needs, long.needs])
    counts = np.array([[short.count], [long.count]])
    n_met = int((needs <= counts).all(axis=0).sum())
    usd = (short.usd_per_hour or 0.0) + (long.usd_per_hour or 0.0)
    return Split(tokens, usd, float(probability_of(n_met, needs.shape[1])), *pools)


def _cheapest(
    servers: Mapping[str, SimulatedReplica], traffic: Traffic, target: Target, confidence: float
) -> Sizing | None:
    """Return the cheapest sizing; None: no number of replicas is likely enough."""
    settings = SizingSettings(has_rate=False)
    sizings = size_profiles(servers, traffic, target, confidence, settings)
    enough = [sizing for sizing in sizings.values() if sizing.replicas]
    return min(enough, key=lambda sizing: sizing.usd_per_hour or np.inf, default=None)


def _pool(sizing: Sizing | None) -> SplitPool:
    if sizing is None:
        return SplitPool(None, None)
    return SplitPool(sizing.server.profile.gpu_profile_id, sizing.replicas)

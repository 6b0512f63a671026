"""The answer of `sextant fleet`: a plan, and what would change it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from sextant.decide.fleet import FleetPlan
from sextant.facts.gpu import PriceOrigin, price_origins


@dataclass(frozen=True)
class ChangeWorth:
    """What a change is worth: the difference after the fleet is solved again with it."""

    n_more_served: int
    usd_per_hour_saved: float  #: Negative where serving more demands costs more.
    at_most_usd_per_hour: float
    """Upper bound of the saving: the saving if both solutions were exact."""
    serves: tuple[str, ...]
    """Demands that are served only with the change; empty unless more demands are served, or more
    of a higher priority."""
    drops: tuple[str, ...]  #: Demands of a lower priority that are no longer served.


@dataclass(frozen=True)
class NodeWorth(ChangeWorth):
    """What one further node of a pool is worth."""

    pool_id: str


@dataclass(frozen=True)
class LimitWorth(ChangeWorth):
    """What looser limits of one demand are worth."""

    demand_id: str
    factor: float  #: On all its latency limits.


@dataclass(frozen=True)
class Mend:
    """What would let an unserved demand be served too, while all others are served as they are."""

    demand_id: str
    reason: str
    """`no_option`: no GPU profile keeps its limits with any number of replicas; `no_room`: some
    profile does, but the pools have no room for its replicas."""
    more_nodes: dict[str, int]
    """Fewest further nodes by pool, each pool alone; pools that do not help are left out."""
    limit_factor: float | None
    """The smallest of the tried factors on its limits that is enough; None: none is."""


@dataclass(frozen=True)
class FleetAnswer:
    """A plan, and what would change it."""

    plan: FleetPlan
    risk: float  #: Largest probability that a served demand misses its limits.
    further_nodes: tuple[NodeWorth, ...]
    looser_limits: tuple[LimitWorth, ...]
    mends: tuple[Mend, ...]
    conflict: tuple[str, ...]
    """Demands that cannot all be served together; without any one of them the others can."""
    warnings: tuple[str, ...] = ()
    memory: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By served demand: the memory of a GPU, and the longest request to start with (`StartUp`)."""

    @cached_property
    def prices(self) -> Sequence[PriceOrigin]:
        """Where the prices of the pools come from."""
        pools = [use.pool for use in self.plan.pools]
        return price_origins((pool.price_source, pool.price_as_of) for pool in pools)

    @property
    def is_everyone_served(self) -> bool:
        """Whether every demand is served."""
        return not self.plan.unserved

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value: the fields, and `prices`."""
        return asdict(self) | {"prices": [origin._asdict() for origin in self.prices]}

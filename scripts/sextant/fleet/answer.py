"""The answer of `sextant fleet`: a plan, and what would change it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from sextant.decide.fleet import FleetPlan, ServedDemand
from sextant.deploy.deployment import ReplicaDeployment, deployment_facts, deployment_of
from sextant.deploy.settings import ReplicaSettings
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
    settings: Mapping[str, ReplicaSettings] = field(default_factory=dict)
    """By served demand: what is assumed of a replica."""

    @cached_property
    def prices(self) -> Sequence[PriceOrigin]:
        """Where the prices of the pools come from."""
        pools = [use.pool for use in self.plan.pools]
        return price_origins((pool.price_source, pool.price_as_of) for pool in pools)

    @property
    def is_everyone_served(self) -> bool:
        """Whether every demand is served."""
        return not self.plan.unserved

    def deployments(self) -> list[ReplicaDeployment]:
        """Return what starts the replicas of each served demand.

        Raises:
            InputError: no command or container of an engine is known for some GPUs.
        """
        return self._deployments(self.plan.served)

    def _deployments(self, served_demands: Sequence[ServedDemand]) -> list[ReplicaDeployment]:
        deployments = []
        for served in served_demands:
            demand = served.demand
            settings = self.settings[demand.demand_id]
            deployment = deployment_of(settings, served.replicas)
            deployments.append(replace(deployment, owner=demand.team, title=demand.demand_id))
        return deployments

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value: the fields, and by served demand `memory` and `serving`."""
        facts = asdict(replace(self, settings={}))
        del facts["settings"]
        served_by_id = {served.demand.demand_id: served for served in self.plan.served}
        return facts | {
            "memory": {name: of.start_up.facts() for name, of in self.settings.items()},
            "serving": {
                name: deployment_facts(partial(self._deployments, [served_by_id[name]]))
                for name in self.settings
            },
            "prices": [origin._asdict() for origin in self.prices],
        }

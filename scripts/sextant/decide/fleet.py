"""The terms of a fleet: demands, pools, options and the plan."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sextant.decide.replica_sizing import enough_replicas
from sextant.facts.slo import SLO


@dataclass(frozen=True)
class FleetDemand:
    """An LLM that a team wants served."""

    demand_id: str
    team: str
    llm_id: str
    slo: SLO  #: Limits, and the load to serve: of a trace, that of its busiest hour.
    priority: int = 1  #: 1 is served first.
    least_replicas: int = 1  #: For availability: never fewer.


@dataclass(frozen=True)
class GPUPool:
    """Nodes that are alike: a row of the sheet of supply."""

    pool_id: str
    gpu_id: str
    nodes: int  #: How many there are, or the most that can be rented.
    devices_per_node: int  #: GPUs, or MIG slices.
    usd_per_hour: float = 0.0
    """Price of one device. An owned device costs it while in use; a rented node is paid whole."""
    is_owned: bool = True
    price_source: str | None = None  #: Whose price it is.
    price_as_of: str | None = None  #: From when it is.

    def usable_devices(self, n_gpus: int) -> int:
        """Return the devices of a node that replicas of `n_gpus` devices can use."""
        return self.devices_per_node // n_gpus * n_gpus


@dataclass(frozen=True, eq=False)
class FleetOption:
    """A GPU profile that may serve a demand, and how many replicas that takes."""

    demand_id: str
    gpu_profile_id: str
    gpu_id: str
    n_gpus: int  #: Devices of one replica, all on one node.
    needs: np.ndarray
    """Replicas that it takes by draw, (draws,); infinite where no number is enough. Draw `i` is the
    same possible truth in all options of a fleet."""

    def replicas(self, risk: float, least: int = 1) -> int | None:
        """Return the fewest replicas that suffice with probability 1 - risk; None: none do."""
        enough = enough_replicas(self.needs, 1 - risk)
        return None if enough is None else max(enough, least)

    def is_met(self, replicas: int) -> np.ndarray:
        """Return in which draws a number of replicas suffices, shape (draws,)."""
        return self.needs <= replicas


@dataclass(frozen=True)
class ServedDemand:
    """A demand that is served."""

    demand: FleetDemand
    gpu_profile_id: str
    n_gpus: int  #: Devices of one replica.
    replicas: int
    probability_met: float
    usd_per_hour: float
    """Its devices at the prices of their pools; what rented nodes have idle is not in it."""


@dataclass(frozen=True)
class Placement:
    """Replicas of a demand on one node."""

    pool_id: str
    node: int  #: Counted from 0 within the pool.
    demand_id: str
    gpu_profile_id: str
    replicas: int


@dataclass(frozen=True)
class PoolUse:
    """What a pool has in use."""

    pool: GPUPool
    nodes_used: int  #: Nodes with a replica on them.
    devices_used: int
    usd_per_hour: float
    idle_usd_per_hour: float  #: The part of it that is paid for idle devices of rented nodes.


@dataclass(frozen=True)
class TeamUse:
    """What a team gets."""

    team: str
    n_demands: int
    n_served: int
    devices: int
    usd_per_hour: float


@dataclass(frozen=True)
class FleetPlan:
    """Which demand gets which devices."""

    served: tuple[ServedDemand, ...]  #: In the order of the demands.
    unserved: tuple[FleetDemand, ...]
    placements: tuple[Placement, ...]
    pools: tuple[PoolUse, ...]
    usd_per_hour: float
    bound_usd_per_hour: float  #: No plan that serves as many demands of each priority costs less.
    most_served: int  #: No plan serves more; above `len(served)` only if time ran out.
    joint_probability_met: float
    """That all served demands are met at once, with the errors that demands share."""
    product_probability_met: float  #: The same if the demands' errors were independent.
    gap: float  #: How far the cost may be above the least one, as a share of it.

    def n_served(self, priority: int) -> int:
        """Return how many demands of a priority are served."""
        return sum(served.demand.priority == priority for served in self.served)

    def teams(self) -> list[TeamUse]:
        """Return what each team gets; teams with a served demand come first."""
        demands = [*(served.demand for served in self.served), *self.unserved]
        uses = []
        for team in dict.fromkeys(demand.team for demand in demands):
            served_demands = [served for served in self.served if served.demand.team == team]
            uses.append(
                TeamUse(
                    team=team,
                    n_demands=sum(demand.team == team for demand in demands),
                    n_served=len(served_demands),
                    devices=sum(served.replicas * served.n_gpus for served in served_demands),
                    usd_per_hour=sum(served.usd_per_hour for served in served_demands),
                )
            )
        return uses

    def crowded(self) -> list[ServedDemand]:
        """Return the demands that want several replicas and have all of them on one node."""
        nodes_by_demand: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        for placement in self.placements:
            nodes_by_demand[placement.demand_id].add((placement.pool_id, placement.node))
        return [
            served
            for served in self.served
            if served.demand.least_replicas > 1
            and len(nodes_by_demand[served.demand.demand_id]) == 1
        ]

"""The terms of a fleet: demands, pools and options; and the plan and its answer."""

from dataclasses import dataclass

import numpy as np

from sextant.decide.sizing import size_replicas
from sextant.facts.slo import SLO

_SLACK = 1e-9
"""Of quotients: the last digits may be wrong."""


@dataclass(frozen=True)
class Demand:
    """An LLM that a team wants served."""

    demand_id: str
    team: str
    llm_id: str
    slo: SLO
    """Limits, and the load to serve; with a profile the load of the busiest slot."""
    priority: int = 1
    """1 is served first."""
    least_replicas: int = 1
    """For availability: never fewer, at any time."""
    load_shares: tuple[float, ...] = (1.0,)
    """Load by slot of the day as a share of `slo.load`, 0 to 1; one slot if it does not vary."""
    model: str = ""
    """What servers load: a folder of weights or a repository of Hugging Face; else `llm_id`."""


@dataclass(frozen=True)
class Pool:
    """Nodes that are alike: a row of the sheet of supply."""

    pool_id: str
    gpu_id: str
    nodes: int
    """How many there are, or the most that can be rented."""
    devices_per_node: int
    """GPUs, or MIG slices."""
    usd_per_hour: float = 0.0
    """Price of one device. An owned device costs it while in use; a rented node is paid whole."""
    is_owned: bool = True
    price_source: str | None = None
    """Whose price it is."""
    price_as_of: str | None = None
    """From when it is."""
    gpu_product: str = ""
    """The device type as Kubernetes labels its nodes (`nvidia.com/gpu.product`)."""
    mig_profile: str = ""
    """Where devices are MIG slices: of which profile, e.g. 1g.10gb."""


@dataclass(frozen=True, eq=False)
class Option:
    """A GPU profile that may serve a demand, and how many replicas that takes."""

    demand_id: str
    gpu_profile_id: str
    gpu_id: str
    n_gpus: int
    """Devices of one replica, all on one node."""
    load_per_replica: np.ndarray
    """The most load that one replica serves within the limits, by joint draw, shape (draws,).

    Its unit is that of the demand's load, 0 where it serves none. Draw `i` is the same possible
    truth in all options of a fleet.
    """
    loads: np.ndarray
    """The load to serve, shape (slots,); the slots are the same in all options of a fleet."""

    @property
    def needed(self) -> np.ndarray:
        """Fewest replicas by draw and slot, shape (draws, slots); inf: no number is enough."""
        return size_replicas(self.loads, self.load_per_replica[:, None], _SLACK)

    def replicas(self, risk: float, least: int = 1) -> np.ndarray | None:
        """Return the fewest replicas by slot that suffice with probability 1 - risk in all slots.

        A draw in which a replica serves less needs more in every slot: so the 1 - risk quantile
        of all slots is that of one draw. None: no number is enough.
        """
        n_kept = int(np.ceil((1 - risk) * len(self.load_per_replica) - _SLACK))
        served = np.sort(self.load_per_replica)[-max(n_kept, 1)]
        if served <= 0:
            return None
        return np.asarray(np.maximum(size_replicas(self.loads, served, _SLACK), least).astype(int))

    def is_met(self, replicas: np.ndarray) -> np.ndarray:
        """Return in which draws these replicas by slot suffice, shape (draws,)."""
        return np.asarray(np.all(self.needed <= replicas, axis=1))


@dataclass(frozen=True)
class Served:
    """A demand that is served."""

    demand: Demand
    gpu_profile_id: str
    n_gpus: int
    """Devices of one replica."""
    replicas: tuple[int, ...]
    """By slot."""
    probability_met: float
    """That these replicas keep its limits in all slots."""
    usd_per_hour: float
    """Its devices at the prices of their pools, mean over the slots. What rented nodes have idle
    is not in it (`PoolUse.idle_usd_per_hour`)."""


@dataclass(frozen=True)
class Placement:
    """Replicas of a demand on one node, in one slot."""

    slot: int
    pool_id: str
    node: int
    """Counted from 0 within the pool."""
    demand_id: str
    gpu_profile_id: str
    replicas: int


@dataclass(frozen=True)
class PoolUse:
    """What a pool has in use."""

    pool: Pool
    nodes_used: tuple[int, ...]
    """Nodes with a replica on them, by slot."""
    devices_used: tuple[int, ...]
    """By slot."""
    usd_per_hour: float
    """Mean over the slots."""
    idle_usd_per_hour: float
    """The part of it that is paid for idle devices of rented nodes."""


@dataclass(frozen=True)
class FleetPlan:
    """Which demand gets which devices."""

    served: tuple[Served, ...]
    """In the order of the demands."""
    unserved: tuple[Demand, ...]
    placements: tuple[Placement, ...]
    pools: tuple[PoolUse, ...]
    usd_per_hour: float
    """Cost of all that is used, mean over the slots."""
    bound_usd_per_hour: float
    """No plan that serves as many demands of each priority costs less."""
    most_served: int
    """No plan serves more; above `len(served)` only where the time limit ended the search."""
    joint_probability_met: float
    """That all served demands are met at once, with the errors that demands share."""
    product_probability_met: float
    """The same if the demands' errors were independent."""

    @property
    def gap(self) -> float:
        """How far the cost may be above the least one, as a share of it."""
        excess = self.usd_per_hour - self.bound_usd_per_hour
        return max(excess, 0.0) / self.usd_per_hour if self.usd_per_hour else 0.0


@dataclass(frozen=True)
class Worth:
    """What a change is worth, by solving again."""

    n_more_served: int
    usd_per_hour_saved: float
    """Below 0 where serving more costs more."""
    at_most_usd_per_hour: float
    """The same if both solutions were exact: an upper bound of what is saved."""
    serves: tuple[str, ...]
    """Demands that are then served too, where more, or more of a higher priority, are."""
    drops: tuple[str, ...]
    """Demands of a lower priority that are then not served."""


@dataclass(frozen=True)
class NodeWorth(Worth):
    """What one further node of a pool is worth."""

    pool_id: str


@dataclass(frozen=True)
class LimitWorth(Worth):
    """What looser limits of one demand are worth."""

    demand_id: str
    factor: float
    """On all its latency limits."""


@dataclass(frozen=True)
class Mend:
    """What would let an unserved demand be served too, while all others are served as they are."""

    demand_id: str
    reason: str
    """`no_option`: no GPU profile keeps its limits however many replicas; `no_room`."""
    more_nodes: dict[str, int]
    """Fewest further nodes by pool, each pool alone; pools that do not help are left out."""
    limit_factor: float | None
    """The smallest of the tried factors on its limits that is enough; None: none is."""


@dataclass(frozen=True)
class FleetAnswer:
    """A plan, and what would change it."""

    plan: FleetPlan
    risk: float
    """Largest probability that a served demand misses its limits."""
    is_elastic: bool
    """Whether replicas and devices change by slot; else all slots have those of the busiest."""
    further_nodes: tuple[NodeWorth, ...]
    looser_limits: tuple[LimitWorth, ...]
    mends: tuple[Mend, ...]
    conflict: tuple[str, ...]
    """Demands that cannot all be served together, though without any one of them the others can;
    empty where all are served."""
    warnings: tuple[str, ...] = ()

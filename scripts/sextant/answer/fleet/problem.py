"""What a fleet is planned from: demands, pools of nodes, and options."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sextant.facts.slo import SLO


@dataclass(frozen=True)
class Demand:
    """What a team wants served."""

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
    gpu_model: str = ""
    """The device type as SLURM names it, as in gpu_profiles.tsv."""
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
        return _ceil(self.loads / np.maximum(self.load_per_replica, 1e-300)[:, None])

    def replicas(self, risk: float, least: int = 1) -> np.ndarray | None:
        """Return the fewest replicas by slot that suffice with probability 1 - risk in all slots.

        A draw in which a replica serves less needs more in every slot: so the 1 - risk quantile
        of all slots is that of one draw. None: no number is enough.
        """
        n_kept = int(_ceil((1 - risk) * len(self.load_per_replica)))
        served = np.sort(self.load_per_replica)[-max(n_kept, 1)]
        return np.maximum(_ceil(self.loads / served), least).astype(int) if served > 0 else None

    def is_met(self, replicas: np.ndarray) -> np.ndarray:
        """Return in which draws so many replicas by slot suffice, shape (draws,)."""
        return np.all(self.needed <= replicas, axis=1)


def _ceil(value: Any) -> Any:
    """Return the next whole number, though the last digits of a quotient be wrong."""
    return np.ceil(value - 1e-9)

"""The mixed-integer program: a GPU profile for each demand, and nodes for its replicas.

Variables: `x` (an option serves its demand; binary); `z` (replicas of n devices in a pool) and `m`
(nodes in use of a pool); `k` (further nodes of a pool; 0 unless asked for).

- A demand has one option at most: sum x <= 1.
- Replicas of a profile lie somewhere: sum over pools of z = sum over options of replicas x.
- They fit. Where sizes of replicas divide one another, those of n devices or more fit on m nodes of
  D devices if and only if sum over n' >= n of n' z <= n floor(D / n) m, for each size n: a node
  holds no more of them, and largest first none is refused before every node is that full.
- There are no more nodes than there are: m <= N + k.
"""

import ctypes
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from sextant.decide.fleet import (
    FleetDemand,
    FleetOption,
    GPUPool,
    Placement,
    PoolUse,
    ServedDemand,
)

GAP = 1e-6  # Share of the cost by which a plan may be above the least one.
TIE_USD = 1e-6
"""What a device in use costs besides its price: owned ones without a price are not wasted."""
TIE_RISK_USD = 1e-3
"""What a demand costs that surely misses its limits: at one price the likelier plan is better."""
_INFEASIBLE = 2


class ReplicaKind(NamedTuple):
    """What a replica occupies."""

    gpu_id: str
    n_gpus: int


@dataclass(frozen=True, eq=False)
class Choice:
    """An option with the replicas that the risk asks for."""

    option: FleetOption
    demand: int  #: Index of its demand in the program.
    replicas: int
    probability_met: float

    @property
    def kind(self) -> ReplicaKind:
        """What one of its replicas occupies."""
        return ReplicaKind(self.option.gpu_id, self.option.n_gpus)

    def served(self, demand: FleetDemand, usd_per_device: float) -> ServedDemand:
        """Return its demand as served; `usd_per_device` is the price per hour of one device of each
        of its replicas, together."""
        return ServedDemand(
            demand=demand,
            gpu_profile_id=self.option.gpu_profile_id,
            n_gpus=self.option.n_gpus,
            replicas=self.replicas,
            probability_met=self.probability_met,
            usd_per_hour=usd_per_device * self.option.n_gpus,
        )


@dataclass(frozen=True)
class Solution:
    """The choices of a program that serve, and the pools of their replicas."""

    chosen: list[Choice]
    replicas_by_pool: dict[tuple[int, int], int]
    """Number of replicas, by index of the pool and devices of a replica."""
    value: float
    bound: float  #: No solution has a smaller value.


class _Columns(NamedTuple):
    """The column of each variable; `x` of choice `c` is column `c`."""

    replicas: dict[tuple[int, int], int]  #: `z`, by index of the pool and devices of a replica.
    nodes: list[int]  #: `m`, by index of the pool.
    further_nodes: list[int]  #: `k`, by index of the pool.
    n: int  #: Number of all columns.


@dataclass(frozen=True)
class Program:
    """Demands with their choices, and pools."""

    demands: Sequence[FleetDemand]
    pools: Sequence[GPUPool]  #: No two of one kind (`merge_pools`).
    choices: Sequence[Choice]
    members: Mapping[str, Sequence[GPUPool]]
    """The pools that were merged into one, by its id."""

    @cached_property
    def kinds(self) -> list[ReplicaKind]:
        """The kinds of replicas of all choices, ascending."""
        return sorted({choice.kind for choice in self.choices})

    def _fitting(self, pool: GPUPool) -> list[int]:
        """Return the devices of replicas that fit on a node, ascending; each divides the next."""
        return [
            kind.n_gpus
            for kind in self.kinds
            if kind.gpu_id == pool.gpu_id and kind.n_gpus <= pool.devices_per_node
        ]

    @cached_property
    def _columns(self) -> _Columns:
        """The columns of x, then of z, m and k of pool after pool."""
        replicas: dict[tuple[int, int], int] = {}
        nodes = []
        further_nodes = []
        n = len(self.choices)
        for g, pool in enumerate(self.pools):
            for n_gpus in self._fitting(pool):
                replicas[g, n_gpus] = n
                n += 1
            nodes.append(n)
            further_nodes.append(n + 1)
            n += 2
        return _Columns(replicas, nodes, further_nodes, n)

    @cached_property
    def _constraints(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The matrix, and its rows' bounds; the first rows are the demands, in their order."""
        columns = self._columns
        rows: list[dict[int, float]] = []  # coefficients by column
        bounds: list[tuple[float, float]] = []

        for d in range(len(self.demands)):
            rows.append({c: 1 for c, choice in enumerate(self.choices) if choice.demand == d})
            bounds.append((0, 1))

        for kind in self.kinds:
            row: dict[int, float] = {
                column: 1
                for (g, n_gpus), column in columns.replicas.items()
                if (self.pools[g].gpu_id, n_gpus) == kind
            }
            row |= {
                c: -choice.replicas for c, choice in enumerate(self.choices) if choice.kind == kind
            }
            rows.append(row)
            bounds.append((0, 0))

        for g, pool in enumerate(self.pools):
            rows.append({columns.nodes[g]: 1, columns.further_nodes[g]: -1})
            bounds.append((-np.inf, pool.nodes))
            sizes = self._fitting(pool)
            for n_gpus in sizes:
                row = {columns.replicas[g, size]: size for size in sizes if size >= n_gpus}
                rows.append(row | {columns.nodes[g]: -pool.usable_devices(n_gpus)})
                bounds.append((-np.inf, 0))

        matrix = np.zeros((len(rows), columns.n))
        for index, row in enumerate(rows):
            matrix[index, list(row)] = list(row.values())
        return matrix, *np.array(bounds, float).T

    @cached_property
    def usd_per_hour(self) -> np.ndarray:
        """The cost of each variable, with what decides between equal plans."""
        columns = self._columns
        cost = np.zeros(columns.n)
        for c, choice in enumerate(self.choices):
            cost[c] = TIE_RISK_USD * (1 - choice.probability_met)
        for (g, n_gpus), column in columns.replicas.items():
            pool = self.pools[g]
            cost[column] = n_gpus * (TIE_USD + (pool.usd_per_hour if pool.is_owned else 0.0))
        for column, pool in zip(columns.nodes, self.pools, strict=True):
            if not pool.is_owned:
                cost[column] = pool.devices_per_node * pool.usd_per_hour
        return cost

    def served_objective(self, priority: int) -> np.ndarray:
        """Return the objective that counts the served demands of a priority, negative."""
        objective = np.zeros(self._columns.n)
        for c, choice in enumerate(self.choices):
            if self.demands[choice.demand].priority == priority:
                objective[c] = -1.0
        return objective

    def further_nodes_objective(self, pool: int) -> np.ndarray:
        """Return the objective that counts further nodes of a pool, given by its index."""
        objective = np.zeros(self._columns.n)
        objective[self._columns.further_nodes[pool]] = 1.0
        return objective

    def solve(
        self,
        objective: np.ndarray | None = None,
        *,
        must: Collection[int] = (),
        at_least: Mapping[int, int] | None = None,
        growing: int | None = None,
        gap: float = 0.0,
        time_limit_s: float = np.inf,
    ) -> Solution | None:
        """Return the solution of the smallest value, None if there is certainly none.

        Args:
            objective: a coefficient per variable; without it any solution will do.
            must: indices of the demands that have to be served.
            at_least: how many demands have to be served, by priority.
            growing: index of the pool that may have any number of nodes.
            gap: the share by which the value may be above the least one.
            time_limit_s: then the best solution so far is returned.

        Raises:
            TimeoutError: within the time no solution was found, nor ruled out.
        """
        columns = self._columns
        matrix, low, high = self._constraints
        low = low.copy()
        low[list(must)] = 1
        constraints = [LinearConstraint(matrix, low, high)]
        for priority, count in (at_least or {}).items():
            constraints.append(LinearConstraint(-self.served_objective(priority), count, np.inf))

        most = np.full(columns.n, np.inf)
        most[: len(self.choices)] = 1
        most[columns.further_nodes] = 0
        if growing is not None:
            most[columns.further_nodes[growing]] = np.inf

        with _silent():
            result = milp(
                np.zeros(columns.n) if objective is None else objective,
                integrality=1,
                bounds=Bounds(0, most),
                constraints=constraints,
                options={"mip_rel_gap": gap, "time_limit": min(time_limit_s, 1e9)},
            )
        if result.x is None:
            if result.status == _INFEASIBLE:
                return None
            raise TimeoutError(f"no solution was found in {time_limit_s:g} s")

        values = np.round(result.x).astype(int)
        return Solution(
            chosen=[choice for c, choice in enumerate(self.choices) if values[c]],
            replicas_by_pool={
                key: int(values[column])
                for key, column in columns.replicas.items()
                if values[column]
            },
            value=float(result.fun),
            bound=float(result.mip_dual_bound),
        )

    def serve_most(self, time_limit_s: float) -> tuple[Solution, int]:
        """Return the cheapest solution that serves the most by priority, and a bound on how many
        demands any solution serves. After the time limit the solution may not be the cheapest."""
        with suppress(TimeoutError):
            everyone = range(len(self.demands))
            solution = self.solve(
                self.usd_per_hour, must=everyone, gap=GAP, time_limit_s=time_limit_s
            )
            if solution is not None:
                return solution, len(self.demands)

        best = Solution([], {}, 0.0, 0.0)
        most_served = 0
        at_least: dict[int, int] = {}  # demands to serve, by priority
        for priority in sorted({demand.priority for demand in self.demands}):
            at_most = sum(demand.priority == priority for demand in self.demands)
            with suppress(TimeoutError):
                counted = self.served_objective(priority)
                solution = self.solve(counted, at_least=at_least, time_limit_s=time_limit_s)
                if solution is not None:
                    best = replace(solution, bound=0.0)
                    at_most = floor(-solution.bound + 1e-6)
                    at_least[priority] = round(-solution.value)
            most_served += at_most

        with suppress(TimeoutError):
            cheapest = self.solve(
                self.usd_per_hour, at_least=at_least, gap=GAP, time_limit_s=time_limit_s
            )
            best = cheapest or best
        return best, most_served

    def member_node(self, pool: GPUPool, node: int) -> tuple[str, int]:
        """Return a node of a merged pool as the id of the pool that has it, and its number there.
        A node beyond the last one raises IndexError."""
        for member in self.members[pool.pool_id]:
            if node < member.nodes:
                return member.pool_id, node
            node -= member.nodes
        raise IndexError(f"{pool.pool_id} has no such node")


@contextmanager
def _silent() -> Iterator[None]:
    """Discard what HiGHS prints to standard output now and then."""
    sys.stdout.flush()
    standard_output = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(standard_output, 1)
        os.close(standard_output)


def merge_pools(pools: Sequence[GPUPool]) -> tuple[list[GPUPool], dict[str, list[GPUPool]]]:
    """Return one pool per kind of node, with the id of its first member, and all members by it."""
    by_kind: dict[tuple[str, int, float, bool], list[GPUPool]] = {}
    for pool in pools:
        kind = (pool.gpu_id, pool.devices_per_node, pool.usd_per_hour, pool.is_owned)
        by_kind.setdefault(kind, []).append(pool)

    members = {alike[0].pool_id: alike for alike in by_kind.values()}
    merged = [
        replace(alike[0], nodes=sum(pool.nodes for pool in alike)) for alike in members.values()
    ]
    return merged, members


class _Share(NamedTuple):
    """The replicas of a choice that lie in one pool."""

    choice: Choice
    replicas: int
    is_spread: bool  #: For availability they lie on different nodes, if there is room.


def replicas_on_nodes(program: Program, solution: Solution) -> list[Placement]:
    """Return the nodes of all replicas; the pools of a GPU profile are filled in turn.

    In a pool, replicas lie on the fullest nodes with room, so that whole nodes stay free. They lie
    on the emptiest nodes if there fewer replicas share a node that should be apart.
    """
    shares_by_pool: list[list[_Share]] = [[] for _ in program.pools]
    replicas_left = dict(solution.replicas_by_pool)
    for choice in solution.chosen:
        is_spread = program.demands[choice.demand].least_replicas > 1
        n_missing = choice.replicas
        for g, n_gpus in sorted(replicas_left):
            n_taken = min(n_missing, replicas_left[g, n_gpus])
            if n_taken and (program.pools[g].gpu_id, n_gpus) == choice.kind:
                shares_by_pool[g].append(_Share(choice, n_taken, is_spread))
                replicas_left[g, n_gpus] -= n_taken
                n_missing -= n_taken

    placements = []
    for pool, shares in zip(program.pools, shares_by_pool, strict=True):
        packings = [_packed(pool, shares, is_even) for is_even in (False, True)]
        on_fullest, on_emptiest = (
            sum(
                int(by_node.max())
                for by_node, share in zip(packing, shares, strict=True)
                if share.is_spread
            )
            for packing in packings
        )
        packing = packings[on_emptiest < on_fullest]
        for share, by_node in zip(shares, packing, strict=True):
            option = share.choice.option
            for node in map(int, np.flatnonzero(by_node)):
                pool_id, member_node = program.member_node(pool, node)
                placements.append(
                    Placement(
                        pool_id=pool_id,
                        node=member_node,
                        demand_id=option.demand_id,
                        gpu_profile_id=option.gpu_profile_id,
                        replicas=int(by_node[node]),
                    )
                )
    return placements


def _packed(pool: GPUPool, shares: Sequence[_Share], is_even: bool) -> list[np.ndarray]:
    """Return the replicas by node of each share, on the emptiest nodes with room or the fullest.

    The largest replicas come first. A share that is spread prefers nodes without a replica of its
    own. As sizes divide one another, any node with room will do (see above).
    """
    n_gpus = np.array([share.choice.option.n_gpus for share in shares], int)
    n_nodes = pool.nodes
    if not pool.is_owned:  # the fewest that hold all replicas
        devices = n_gpus * [share.replicas for share in shares]
        n_nodes = max(
            (-(-int(devices[n_gpus >= n].sum()) // pool.usable_devices(int(n))) for n in n_gpus),
            default=0,
        )

    free = np.full(n_nodes, pool.devices_per_node)
    packing = [np.zeros(n_nodes, dtype=int) for _ in shares]
    for index in sorted(range(len(shares)), key=lambda index: -n_gpus[index]):
        by_node = packing[index]
        for _ in range(shares[index].replicas):
            rooms = np.flatnonzero(free >= n_gpus[index])
            crowded = by_node[rooms] if shares[index].is_spread else np.zeros(len(rooms))
            order = -free[rooms] if is_even else free[rooms]
            node = rooms[np.lexsort((order, crowded))[0]]
            free[node] -= n_gpus[index]
            by_node[node] += 1
    return packing


def pool_uses(
    pools: Sequence[GPUPool], placements: Sequence[Placement], sizes: Mapping[str, int]
) -> list[PoolUse]:
    """Return what is in use of each pool; `sizes` are devices of a replica by GPU profile."""
    uses = []
    for pool in pools:
        devices = np.zeros(pool.nodes, dtype=int)
        for placement in placements:
            if placement.pool_id == pool.pool_id:
                devices[placement.node] += placement.replicas * sizes[placement.gpu_profile_id]

        n_nodes = int((devices > 0).sum())
        n_used = int(devices.sum())
        n_idle = 0 if pool.is_owned else n_nodes * pool.devices_per_node - n_used
        idle_usd = n_idle * pool.usd_per_hour
        uses.append(PoolUse(pool, n_nodes, n_used, n_used * pool.usd_per_hour + idle_usd, idle_usd))
    return uses

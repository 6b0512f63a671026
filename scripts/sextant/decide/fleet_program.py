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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from sextant.decide.fleet import FleetDemand, FleetOption, GPUPool, Placement, PoolUse

TIE_USD = 1e-6  # A device in use costs so much more: owned ones without a price are not wasted.
TIE_RISK_USD = 1e-3
"""What a demand that surely misses costs beside: at one price the likelier plan is better."""
_INFEASIBLE = 2


@dataclass(frozen=True, eq=False)
class Choice:
    """An option with the replicas that the risk asks for."""

    option: FleetOption
    demand: int  #: Its place among the demands.
    replicas: int
    probability_met: float

    @property
    def kind(self) -> tuple[str, int]:
        """What its replicas occupy: the GPU and the devices of one."""
        return self.option.gpu_id, self.option.n_gpus


@dataclass(frozen=True)
class Solution:
    """What was found."""

    chosen: list[Choice]
    pooled: dict[tuple[str, int, int], int]
    """Replicas of a GPU, a number of devices, and a pool (its place)."""
    value: float
    bound: float  #: No solution has a smaller value.


@dataclass(frozen=True)
class Program:
    """Demands with their choices, and pools."""

    demands: Sequence[FleetDemand]
    pools: Sequence[GPUPool]  #: Each of its own kind (`merge_pools`).
    choices: Sequence[Choice]
    members: Mapping[str, Sequence[GPUPool]]
    """The pools that are alike, by the name of the one that stands for them."""

    def _fitting(self, pool: GPUPool) -> list[int]:
        """Return the devices of replicas that fit on a node, rising; each divides the next."""
        kinds = {choice.kind for choice in self.choices}
        return sorted(n for gpu, n in kinds if gpu == pool.gpu_id and n <= pool.devices_per_node)

    @cached_property
    def _places(self) -> dict[tuple[Any, ...], int]:
        """The column of each variable: x, then z, m and k."""
        keys: list[tuple[Any, ...]] = [("x", c) for c in range(len(self.choices))]
        for g, pool in enumerate(self.pools):
            keys += [("z", n, g) for n in self._fitting(pool)] + [("m", g), ("k", g)]
        return {key: column for column, key in enumerate(keys)}

    @cached_property
    def _constraints(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The matrix, and its rows' bounds; the first rows are the demands, in their order."""
        rows = []
        bounds = []
        pools = [*enumerate(self.pools)]

        def add(terms: Iterable[tuple[tuple[Any, ...], float]], low: float, high: float) -> None:
            row = np.zeros(len(self._places))
            for key, value in terms:
                row[self._places[key]] = value
            rows.append(row)
            bounds.append((low, high))

        for d in range(len(self.demands)):
            own = (c for c, choice in enumerate(self.choices) if choice.demand == d)
            add(((("x", c), 1) for c in own), 0, 1)
        for kind in sorted({choice.kind for choice in self.choices}):
            gpu, n = kind
            pooled = [g for g, pool in pools if pool.gpu_id == gpu and n <= pool.devices_per_node]
            placed = [(c, each) for c, each in enumerate(self.choices) if each.kind == kind]
            terms = [(("z", n, g), 1) for g in pooled]
            add([*terms, *((("x", c), -each.replicas) for c, each in placed)], 0, 0)
        for g, pool in pools:
            add([(("m", g), 1), (("k", g), -1)], -np.inf, pool.nodes)
            for n in self._fitting(pool):
                larger = [(("z", each, g), each) for each in self._fitting(pool) if each >= n]
                add([*larger, (("m", g), -usable(pool, n))], -np.inf, 0)
        return np.array(rows), *np.array(bounds, float).T

    @cached_property
    def usd_per_hour(self) -> np.ndarray:
        """The cost of each variable, with what decides between equal plans."""
        cost = np.zeros(len(self._places))
        for c, choice in enumerate(self.choices):
            cost[c] = TIE_RISK_USD * (1 - choice.probability_met)
        for key, column in self._places.items():
            pool = self.pools[key[-1]] if key[0] != "x" else None
            if pool and key[0] == "z":
                cost[column] = key[1] * (TIE_USD + (pool.usd_per_hour if pool.is_owned else 0.0))
            if pool and key[0] == "m" and not pool.is_owned:
                cost[column] = pool.devices_per_node * pool.usd_per_hour
        return cost

    def number_served(self, priority: int) -> np.ndarray:
        """Return the objective that counts the demands of a priority that are served, negative."""
        objective = np.zeros(len(self._places))
        for c, choice in enumerate(self.choices):
            if self.demands[choice.demand].priority == priority:
                objective[c] = -1.0
        return objective

    def further_nodes(self, pool: int) -> np.ndarray:
        """Return the objective that counts further nodes of a pool."""
        objective = np.zeros(len(self._places))
        objective[self._places["k", pool]] = 1.0
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
        """Return the solution of the smallest value, None if there is certainly none. The
        `objective` has a coefficient a variable; without one any solution will do. The demands
        `must` (their places) have to be served, and of each priority `at_least` so many; the pool
        `growing` may have any number of nodes. The value may be a share `gap` above the least one.
        After `time_limit_s` it is the best found; TimeoutError if nothing was found or ruled out.
        """
        matrix, low, high = self._constraints
        low = low.copy()
        low[list(must)] = 1
        constraints = [LinearConstraint(matrix, low, high)]
        for priority, count in (at_least or {}).items():
            constraints.append(LinearConstraint(-self.number_served(priority), count, np.inf))
        most = np.full(len(self._places), np.inf)
        most[: len(self.choices)] = 1
        for g in range(len(self.pools)):
            most[self._places["k", g]] = np.inf if g == growing else 0
        of = {"integrality": 1, "bounds": Bounds(0, most), "constraints": constraints}
        how = {"mip_rel_gap": gap, "time_limit": min(time_limit_s, 1e9)}
        objective = np.zeros(len(most)) if objective is None else objective
        with _silent():
            found = milp(objective, **of, options=how)
        if found.x is None:
            if found.status == _INFEASIBLE:
                return None
            raise TimeoutError(f"no solution was found in {time_limit_s:g} s")
        x = np.round(found.x).astype(int)
        pooled = {
            (self.pools[key[2]].gpu_id, key[1], key[2]): int(x[column])
            for key, column in self._places.items()
            if key[0] == "z" and x[column]
        }
        chosen = [choice for c, choice in enumerate(self.choices) if x[c]]
        return Solution(chosen, pooled, float(found.fun), float(found.mip_dual_bound))


@contextmanager
def _silent() -> Iterator[None]:
    """Keep off standard output what HiGHS prints now and then."""
    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)


def merge_pools(pools: Sequence[GPUPool]) -> tuple[list[GPUPool], dict[str, list[GPUPool]]]:
    """Return pools of different kinds, and which ones each stands for: alike nodes are one pool."""
    alike: dict[tuple[Any, ...], list[GPUPool]] = {}
    for pool in pools:
        kind = pool.gpu_id, pool.devices_per_node, pool.usd_per_hour, pool.is_owned
        alike.setdefault(kind, []).append(pool)
    groups = [*alike.values()]
    ones = [replace(group[0], nodes=sum(each.nodes for each in group)) for group in groups]
    return ones, {group[0].pool_id: group for group in groups}


def usable(pool: GPUPool, n: int) -> int:
    """Return the devices of a node that replicas of n devices can use."""
    return pool.devices_per_node // n * n


def replicas_on_nodes(program: Program, solution: Solution) -> list[Placement]:
    """Return the nodes of replicas: the pools of a profile are filled in turn."""
    left = dict(solution.pooled)
    found = []
    shares: list[list[tuple[Choice, int]]] = [[] for _ in program.pools]
    for choice in solution.chosen:
        wanted = choice.replicas
        for place in sorted(left):
            if place[:2] == choice.kind and (taken := min(wanted, left[place])):
                shares[place[2]].append((choice, taken))
                left[place] -= taken
                wanted -= taken
    for pool, own in zip(program.pools, shares, strict=True):
        found += _on_nodes(program, pool, own)
    return found


def _on_nodes(
    program: Program, pool: GPUPool, shares: Sequence[tuple[Choice, int]]
) -> list[Placement]:
    """Return where replicas lie in a pool: on the fullest nodes with room, so that whole nodes stay
    free, unless replicas that have to lie apart are fewer to a node on the emptiest ones."""
    is_spread = [program.demands[choice.demand].least_replicas > 1 for choice, _ in shares]
    packings = [_packed(pool, shares, is_spread, is_even) for is_even in (False, True)]
    fuller, emptier = (
        sum(int(held.max()) for held, is_own in zip(packing, is_spread, strict=True) if is_own)
        for packing in packings
    )
    found = []
    for (choice, _), held in zip(shares, packings[emptier < fuller], strict=True):
        names = choice.option.demand_id, choice.option.gpu_profile_id
        for node in map(int, np.flatnonzero(held)):
            place = node
            for each in program.members[pool.pool_id]:  # the pool of its own that has the node
                if place < each.nodes:
                    found.append(Placement(each.pool_id, place, *names, int(held[node])))
                    break
                place -= each.nodes
    return found


def _packed(
    pool: GPUPool, shares: Sequence[tuple[Choice, int]], is_spread: Sequence[bool], is_even: bool
) -> list[np.ndarray]:
    """Return the replicas by node of each share, on the emptiest nodes with room or the fullest.
    The largest come first; those that are spread first on a node without one of them. As sizes
    divide one another, any node with room will do (see `program`)."""
    sizes = [choice.option.n_gpus for choice, _ in shares]
    n_nodes = pool.nodes
    if not pool.is_owned:  # the fewest that hold them
        devices = np.array(sizes) * [replicas for _, replicas in shares]
        needed = [-(-devices[np.array(sizes) >= n].sum() // usable(pool, n)) for n in sizes]
        n_nodes = max(map(int, needed), default=0)
    free = np.full(n_nodes, pool.devices_per_node)
    found = [np.zeros(n_nodes, dtype=int) for _ in shares]
    for place in sorted(range(len(shares)), key=lambda at: -sizes[at]):
        held = found[place]
        for _ in range(shares[place][1]):
            rooms = np.flatnonzero(free >= sizes[place])
            crowded = held[rooms] if is_spread[place] else np.zeros(len(rooms))
            order = -free[rooms] if is_even else free[rooms]
            node = rooms[np.lexsort((order, crowded))[0]]
            free[node] -= sizes[place]
            held[node] += 1
    return found


def pool_uses(
    pools: Sequence[GPUPool], placements: Sequence[Placement], sizes: Mapping[str, int]
) -> list[PoolUse]:
    """Return what is in use of each pool; `sizes` are devices of a replica by GPU profile."""
    found = []
    for pool in pools:
        devices = np.zeros(pool.nodes, dtype=int)
        for each in placements:
            if each.pool_id == pool.pool_id:
                devices[each.node] += each.replicas * sizes[each.gpu_profile_id]
        nodes = int((devices > 0).sum())
        used = int(devices.sum())
        idle_devices = 0 if pool.is_owned else nodes * pool.devices_per_node - used
        idle = idle_devices * pool.usd_per_hour
        found.append(PoolUse(pool, nodes, used, used * pool.usd_per_hour + idle, idle))
    return found

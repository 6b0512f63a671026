"""The mixed-integer program: a GPU profile for each demand, and nodes for its replicas.

Variables: `x` (an option serves its demand; binary); by slot `z` (replicas of n devices in a pool)
and `m` (nodes in use of a pool); `k` (further nodes of a pool; 0 unless asked for).

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
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_array

from sextant.base.errors import InputError
from sextant.decide.fleet import Demand, Option, Placement, Pool, PoolUse

TIE_USD = 1e-6
"""What a device in use costs beside its price: owned ones without a price are not wasted."""
TIE_RISK_USD = 1e-3
"""What a demand costs beside the price if it is certain to miss its limits: of plans at one price
the likelier is better, then the one of fewer devices."""
_INFEASIBLE = 2


@dataclass(frozen=True, eq=False)
class Choice:
    """An option with the replicas that the risk asks for."""

    option: Option
    demand: int
    """Its place among the demands."""
    replicas: np.ndarray
    """By slot."""
    probability_met: float
    """That these replicas keep the limits in all slots."""

    @property
    def kind(self) -> tuple[str, int]:
        """What its replicas occupy: the GPU and the devices of one."""
        return self.option.gpu_id, self.option.n_gpus


@dataclass(frozen=True)
class Solution:
    """What was found."""

    chosen: list[Choice]
    pooled: dict[tuple[str, int, int], np.ndarray]
    """Replicas by slot, of a GPU, a number of devices, and a pool (its place)."""
    value: float
    bound: float
    """No solution has a smaller value."""


@dataclass
class _Rows:
    """A sparse matrix with bounds, row by row."""

    terms: list[tuple[int, int, float]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        self.terms += [(len(self.low), column, value) for column, value in terms]
        self.low.append(low)
        self.high.append(high)


@dataclass(frozen=True)
class Program:
    """Demands with their choices, and pools; slots that are alike are one, with a weight."""

    demands: Sequence[Demand]
    pools: Sequence[Pool]
    """Each of its own kind (`merge_pools`)."""
    choices: Sequence[Choice]
    weights: np.ndarray
    """Share of the day of each slot."""
    members: Mapping[str, Sequence[Pool]]
    """The pools that are alike, by the name of the one that stands for them."""

    def member(self, pool: Pool, node: int) -> tuple[str, int]:
        """Return the pool of its own, and the node in it, of a node of one that stands for it."""
        for each in self.members[pool.pool_id]:
            if node < each.nodes:
                return each.pool_id, node
            node -= each.nodes
        raise IndexError(node)

    @cached_property
    def _sizes(self) -> dict[str, list[int]]:
        """Devices of a replica by GPU, rising. Raises InputError unless each divides the next."""
        sizes: dict[str, list[int]] = {}
        for gpu, n in sorted({choice.kind for choice in self.choices}):
            sizes.setdefault(gpu, []).append(n)
        for gpu, found in sizes.items():
            for less, more in pairwise(found):
                if more % less:
                    problem = f"replicas of {less} and of {more} {gpu} are not packed exactly"
                    fix = "offer numbers of devices that divide one another, e.g. 1, 2, 4, 8"
                    raise InputError(problem, fix=fix)
        return sizes

    def _fitting(self, pool: Pool) -> list[int]:
        return [n for n in self._sizes.get(pool.gpu_id, ()) if n <= pool.devices_per_node]

    @cached_property
    def _places(self) -> dict[tuple[Any, ...], int]:
        """The column of each variable: x, then z, m and k."""
        keys: list[tuple[Any, ...]] = [("x", c) for c in range(len(self.choices))]
        for g, pool in enumerate(self.pools):
            for s in range(len(self.weights)):
                keys += [("z", n, g, s) for n in self._fitting(pool)] + [("m", g, s)]
            keys.append(("k", g))
        return {key: column for column, key in enumerate(keys)}

    @property
    def n_variables(self) -> int:
        """How many coefficients an objective has."""
        return len(self._places)

    @cached_property
    def _rows(self) -> _Rows:
        """The constraints; the first rows are the demands, in their order."""
        rows, at = _Rows(), self._places
        for d in range(len(self.demands)):
            own = [c for c, choice in enumerate(self.choices) if choice.demand == d]
            rows.add([(at["x", c], 1.0) for c in own], 0, 1)
        for s in range(len(self.weights)):
            for gpu, sizes in self._sizes.items():
                for n in sizes:
                    rows.add(self._balance(gpu, n, s), 0, 0)
            for g, pool in enumerate(self.pools):
                self._fit(rows, g, pool, s)
        return rows

    def _balance(self, gpu: str, n: int, s: int) -> list[tuple[int, float]]:
        at = self._places
        pooled = [
            (at["z", n, g, s], 1.0)
            for g, pool in enumerate(self.pools)
            if pool.gpu_id == gpu and n <= pool.devices_per_node
        ]
        return pooled + [
            (at["x", c], -float(choice.replicas[s]))
            for c, choice in enumerate(self.choices)
            if choice.kind == (gpu, n)
        ]

    def _fit(self, rows: _Rows, g: int, pool: Pool, s: int) -> None:
        at, nodes = self._places, self._places["m", g, s]
        rows.add([(nodes, 1.0), (at["k", g], -1.0)], -np.inf, pool.nodes)
        fitting = self._fitting(pool)
        for n in fitting:
            larger = [(at["z", each, g, s], float(each)) for each in fitting if each >= n]
            rows.add([*larger, (nodes, -float(usable(pool, n)))], -np.inf, 0)

    @cached_property
    def usd_per_hour(self) -> np.ndarray:
        """The cost of each variable, mean over the day, with what decides between equal plans."""
        cost = np.zeros(len(self._places))
        for c, choice in enumerate(self.choices):
            cost[c] = TIE_RISK_USD * (1 - choice.probability_met)
        for key, column in self._places.items():
            if key[0] == "z":
                pool = self.pools[key[2]]
                device = TIE_USD + (pool.usd_per_hour if pool.is_owned else 0.0)
                cost[column] = self.weights[key[3]] * key[1] * device
            if key[0] == "m" and not self.pools[key[1]].is_owned:
                pool = self.pools[key[1]]
                cost[column] = self.weights[key[2]] * pool.devices_per_node * pool.usd_per_hour
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
        objective: np.ndarray,
        *,
        must: Collection[int] = (),
        at_least: Mapping[int, int] | None = None,
        growing: int | None = None,
        gap: float = 0.0,
        time_limit_s: float = np.inf,
    ) -> Solution | None:
        """Return the solution of the smallest value, None if there is certainly none.

        Args:
            objective: a coefficient a variable.
            must: demands (their places) that have to be served.
            at_least: how many demands of a priority have to be served, by priority.
            growing: a pool that may have any number of nodes.
            gap: share of the value by which it may be above the least one.
            time_limit_s: after so long the best that was found is returned.

        Raises:
            TimeoutError: nothing was found in time, nor that there is nothing.
        """
        rows, n = self._rows, len(self._places)
        low, high = np.array(rows.low), np.array(rows.high)
        low[list(must)] = 1
        at, columns, values = np.array(rows.terms or [(0, 0, 0.0)]).T
        matrix = coo_array((values, (at.astype(int), columns.astype(int))), (len(low), n))
        constraints = [LinearConstraint(matrix.tocsr(), low, high)]
        for priority, count in (at_least or {}).items():
            constraints.append(LinearConstraint(-self.number_served(priority), count, np.inf))
        options = {"mip_rel_gap": gap, "time_limit": min(time_limit_s, 1e9)}
        bounds = Bounds(0, self._most(growing))
        with _silent():
            found = milp(
                objective, integrality=1, bounds=bounds, constraints=constraints, options=options
            )
        if found.x is not None:
            return self._solution(found)
        if found.status == _INFEASIBLE:
            return None
        raise TimeoutError(f"no solution was found in {time_limit_s:g} s")

    def _most(self, growing: int | None) -> np.ndarray:
        most = np.full(len(self._places), np.inf)
        most[: len(self.choices)] = 1
        for g in range(len(self.pools)):
            most[self._places["k", g]] = np.inf if g == growing else 0
        return most

    def _solution(self, found: OptimizeResult) -> Solution:
        x = np.round(found.x).astype(int)
        pooled: dict[tuple[str, int, int], np.ndarray] = {}
        for key, column in self._places.items():
            if key[0] == "z" and x[column]:
                _, n, g, s = key
                place = self.pools[g].gpu_id, n, g
                pooled.setdefault(place, np.zeros(len(self.weights), int))[s] = x[column]
        chosen = [choice for c, choice in enumerate(self.choices) if x[c]]
        return Solution(chosen, pooled, float(found.fun), float(found.mip_dual_bound))


@contextmanager
def _silent() -> Iterator[None]:
    """Keep standard output for the answer: HiGHS prints a line of its own now and then."""
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


def merge_pools(pools: Sequence[Pool]) -> tuple[list[Pool], dict[str, list[Pool]]]:
    """Return pools of different kinds, and which ones each stands for: alike nodes are one pool."""
    alike: dict[tuple[Any, ...], list[Pool]] = {}
    for pool in pools:
        kind = pool.gpu_id, pool.devices_per_node, pool.usd_per_hour, pool.is_owned
        alike.setdefault(kind, []).append(pool)
    groups = [*alike.values()]
    ones = [replace(group[0], nodes=sum(each.nodes for each in group)) for group in groups]
    return ones, {group[0].pool_id: group for group in groups}


def usable(pool: Pool, n: int) -> int:
    """Return the devices of a node that replicas of n devices can use."""
    return pool.devices_per_node // n * n


class _Share(NamedTuple):
    """Replicas of a demand that lie in one pool."""

    choice: Choice
    pool: int
    replicas: int


def replicas_on_nodes(
    program: Program, solution: Solution, slots: Sequence[int]
) -> list[Placement]:
    """Return the nodes of replicas; `slots` are the program's slots, by slot of the day."""
    found = []
    for name, slot in enumerate(slots):
        shares = _shares(solution, slot)
        for g, pool in enumerate(program.pools):
            found += _on_nodes(program, pool, [share for share in shares if share.pool == g], name)
    return found


def _shares(solution: Solution, slot: int) -> list[_Share]:
    """Return the pools of each demand's replicas: those of a profile are filled in turn."""
    found = []
    left = {place: int(by_slot[slot]) for place, by_slot in solution.pooled.items()}
    for choice in solution.chosen:
        wanted = int(choice.replicas[slot])
        for place in sorted(left):
            if place[:2] == choice.kind and (taken := min(wanted, left[place])):
                found.append(_Share(choice, place[2], taken))
                left[place] -= taken
                wanted -= taken
    return found


def _on_nodes(program: Program, pool: Pool, shares: Sequence[_Share], slot: int) -> list[Placement]:
    """Return where replicas lie in a pool; no more nodes are rented than are needed.

    On the fullest nodes with room, so that whole nodes stay free, unless replicas that have to
    lie apart are fewer to a node on the emptiest ones.
    """
    packings = [_packed(program, pool, shares, is_even) for is_even in (False, True)]
    crowding = [
        sum(
            int(held.max())
            for share, held in zip(shares, packing, strict=True)
            if program.demands[share.choice.demand].least_replicas > 1
        )
        for packing in packings
    ]
    found = []
    for share, held in zip(shares, packings[int(np.argmin(crowding))], strict=True):
        option = share.choice.option
        names = option.demand_id, option.gpu_profile_id
        for node in np.flatnonzero(held):
            found.append(Placement(slot, *program.member(pool, int(node)), *names, int(held[node])))
    return found


def _packed(
    program: Program, pool: Pool, shares: Sequence[_Share], is_even: bool
) -> list[np.ndarray]:
    """Return the replicas by node of each share, on the emptiest nodes with room or the fullest.

    The largest come first; those of a demand that asks for several replicas first on a node
    without one of them. As sizes divide one another, any node with room will do (see `program`).
    """
    sizes = {share.choice.option.n_gpus: 0 for share in shares}
    for share in shares:
        sizes[share.choice.option.n_gpus] += share.replicas
    n_nodes = pool.nodes if pool.is_owned else nodes_needed(pool, sizes)
    free = np.full(n_nodes, pool.devices_per_node)
    found = [np.zeros(n_nodes, dtype=int) for _ in shares]
    for place in sorted(range(len(shares)), key=lambda at: -shares[at].choice.option.n_gpus):
        share, held = shares[place], found[place]
        option = share.choice.option
        is_spread = program.demands[share.choice.demand].least_replicas > 1
        for _ in range(share.replicas):
            rooms = np.flatnonzero(free >= option.n_gpus)
            crowded = held[rooms] if is_spread else np.zeros(len(rooms))
            order = -free[rooms] if is_even else free[rooms]
            node = rooms[np.lexsort((order, crowded))[0]]
            free[node] -= option.n_gpus
            held[node] += 1
    return found


def nodes_needed(pool: Pool, replicas: dict[int, int]) -> int:
    """Return the fewest nodes of a pool that hold these replicas, by devices of one."""
    needed = [
        -(-sum(size * count for size, count in replicas.items() if size >= n) // usable(pool, n))
        for n in replicas
    ]
    return max(needed, default=0)


def pool_uses(
    pools: Sequence[Pool], placements: Sequence[Placement], sizes: dict[str, int], n_slots: int
) -> list[PoolUse]:
    """Return what is in use of each pool; `sizes` are devices of a replica by GPU profile."""
    found = []
    for pool in pools:
        devices = np.zeros((n_slots, pool.nodes), dtype=int)
        for each in placements:
            if each.pool_id == pool.pool_id:
                devices[each.slot, each.node] += each.replicas * sizes[each.gpu_profile_id]
        nodes = (devices > 0).sum(axis=1)
        used, rented = devices.sum(axis=1), nodes * pool.devices_per_node
        idle = 0.0 if pool.is_owned else float((rented - used).mean()) * pool.usd_per_hour
        cost = float(used.mean()) * pool.usd_per_hour + idle
        found.append(PoolUse(pool, tuple(nodes.tolist()), tuple(used.tolist()), cost, idle))
    return found

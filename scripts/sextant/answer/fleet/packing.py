"""Replicas to nodes: where a solution's replicas lie, and what is in use of each pool."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sextant.answer.fleet.plan import Placement, PoolUse
from sextant.answer.fleet.problem import Pool
from sextant.answer.fleet.program import Choice, Program, Solution, usable


class _Share(NamedTuple):
    """Replicas of a demand that lie in one pool."""

    choice: Choice
    pool: int
    replicas: int


def placed(program: Program, solution: Solution, slots: Sequence[int]) -> list[Placement]:
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


def uses(
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

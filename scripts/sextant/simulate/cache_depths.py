"""How deep in a prefix cache the blocks of a trace lie: the cache that each hit would need."""

import numpy as np

from sextant.simulate.compiling import compiled


def cache_depths(prefix: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each block its depth in the cache, and the request that used it last.

    The depth is the number of blocks used since: a cache of more blocks still has the block. Both
    are -1 for a new block. A block takes O(log of all blocks).

    Args:
        prefix: (all blocks,) number of each block with all before it, from 0 on, one request after
            the other.
        ends: (n,) where each request's blocks end.
    """
    as_indices = (np.ascontiguousarray(values, np.int64) for values in (prefix, ends))
    return compute_depths(*as_indices)


@compiled
def compute_depths(prefix: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what `cache_depths` does, of contiguous int64 arrays."""
    n = len(prefix)
    depth = np.full(n, -1)
    used_by = np.full(n, -1)
    last = np.full(n, -1)
    last_request = np.full(n, -1)
    # Fenwick tree: node i counts the marks of positions up to i, back to the one below its
    # lowest bit.
    marks = np.zeros(n + 1, np.int64)
    n_held = 0
    start = 0
    for request in range(len(ends)):
        for k in range(start, ends[request]):
            used_at = last[prefix[k]]
            if used_at >= 0:
                older = 0
                node = used_at + 1
                while node > 0:
                    older += marks[node]
                    node -= node & -node
                depth[k] = n_held - older
                used_by[k] = last_request[prefix[k]]
        for k in range(start, ends[request]):
            # The end of a prompt counts as used before its beginning.
            now = start + ends[request] - 1 - k
            for position, step in ((last[prefix[k]], -1), (now, 1)):
                node = position + 1
                while 0 < node <= n:
                    marks[node] += step
                    node += node & -node
            n_held += last[prefix[k]] < 0
            last[prefix[k]] = now
            last_request[prefix[k]] = request
        start = ends[request]
    return depth, used_by

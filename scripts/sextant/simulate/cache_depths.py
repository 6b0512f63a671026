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
    n = len(prefix)
    depth, used_by, last, last_request = (np.full(n, -1, np.int64) for _ in range(4))
    marks = np.zeros(n + 1, np.int64)
    blocks = np.ascontiguousarray(prefix, np.int64)
    block_ends = np.ascontiguousarray(ends, np.int64)
    compute_depths(blocks, block_ends, depth, used_by, last, last_request, marks)
    return depth, used_by


@compiled
def compute_depths(
    prefix: np.ndarray,
    ends: np.ndarray,
    depth: np.ndarray,
    used_by: np.ndarray,
    last: np.ndarray,
    last_request: np.ndarray,
    marks: np.ndarray,
) -> None:
    """Write what `cache_depths` returns; all arrays are contiguous int64.

    Args:
        prefix: as of `cache_depths`.
        ends: as of `cache_depths`.
        depth: result, -1 for each block.
        used_by: result, -1 for each block.
        last: when each block was used last, -1 for each block.
        last_request: by which request, -1 for each block.
        marks: a Fenwick tree, 0 for each block and one more. Node i counts the marks of positions
            up to i, back to the one below its lowest bit.
    """
    n = len(prefix)
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

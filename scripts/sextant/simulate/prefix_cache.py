"""A prefix cache of every size at once: how large it has to be for each block to be found in it.

The cache drops what was used longest ago, and of one prompt the end first, as vLLM's does. What a
cache of C blocks holds is then held by all larger ones, and never a block without those before it:
so one pass tells of all sizes (Mattson et al., IBM Systems Journal 9(2), 1970).
"""

import numpy as np

from sextant.simulate.compiled import compiled


@compiled
def cache_depths(prefix: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each block how deep in the cache it lies, and the request that used it last.

    Args:
        prefix: (all blocks,) number of each block with all before it, from 0 on, one request after
            the other.
        ends: (n,) where each request's blocks end.

    Returns:
        (all blocks,) the blocks used since: a cache of more blocks still has it; and (all blocks,)
        the request. Both -1 of a block that is new. O(log of all blocks) for each.
    """
    n = len(prefix)
    depth, used_by = np.full(n, -1), np.full(n, -1)
    last, last_request = np.full(n, -1), np.full(n, -1)
    # Fenwick tree: node i counts the marks of places up to i, back to the one below its lowest bit.
    marks = np.zeros(n + 1, np.int64)
    n_held, start = 0, 0
    for request in range(len(ends)):
        for k in range(start, ends[request]):
            found = last[prefix[k]]
            if found >= 0:
                older, node = 0, found + 1
                while node > 0:
                    older += marks[node]
                    node -= node & -node
                depth[k] = n_held - older
                used_by[k] = last_request[prefix[k]]
        for k in range(start, ends[request]):
            # The end of a prompt counts as used before its beginning.
            now = start + ends[request] - 1 - k
            for place, step in ((last[prefix[k]], -1), (now, 1)):
                node = place + 1
                while 0 < node <= n:
                    marks[node] += step
                    node += node & -node
            n_held += last[prefix[k]] < 0
            last[prefix[k]], last_request[prefix[k]] = now, request
        start = ends[request]
    return depth, used_by

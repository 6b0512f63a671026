"""Which requests of a trace begin with the same tokens: the block ids (`hash_ids`) of its inputs.

An id stands for the tokens of its block alone (Qwen-Bailian), or for all tokens up to the block's
end (Mooncake). Here inputs share the blocks up to the first id that differs, as in a server's
prefix cache.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet, read_provenance
from sextant.trace.trace_format import HASH_IDS, require_trace

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True, eq=False)
class TraceBlocks:
    """All n requests of a trace in the order of arrival, failed ones too, and their blocks."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray  # (n,); 0 of a request that failed
    ids: np.ndarray  # (all blocks,) as the source has them, int64 from 0 on, request after request
    ends: np.ndarray  # (n,) where each request's ids end
    block_tokens: int  # tokens of a block, at most for an input's last one; 0: there are no ids

    @property
    def starts(self) -> np.ndarray:
        """(n,) where each request's ids begin."""
        return np.concatenate([[0], self.ends[:-1]]).astype(np.int64)

    @property
    def request(self) -> np.ndarray:
        """(all blocks,) the request that each block belongs to."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    @property
    def depth(self) -> np.ndarray:
        """(all blocks,) how many blocks of the request come before."""
        return np.arange(len(self.ids)) - self.starts[self.request]

    @property
    def tokens(self) -> np.ndarray:
        """(all blocks,) input tokens that each block holds."""
        left = self.input_tokens[self.request] - self.depth * self.block_tokens
        return np.minimum(left, self.block_tokens)

    def prefixes(self) -> np.ndarray:
        """(all blocks,) numbers from 0 on: equal where a block and all before it are equal."""
        # A sum does not depend on the order of its terms, so each id is mixed with its depth.
        sums = np.cumsum(mixed(self.ids, self.depth))
        before = np.concatenate([np.zeros(1, np.uint64), sums])[self.starts]
        return np.unique(sums - before[self.request], return_inverse=True)[1]

    def at(self, requests: np.ndarray) -> Self:
        """Return the requests with these indices, in this order."""
        starts = self.starts[requests]
        n = np.diff(self.ends, prepend=0)[requests]
        ends = np.cumsum(n)
        ids = self.ids[np.arange(n.sum()) + np.repeat(starts - (ends - n), n)]
        columns = (self.arrival_s, self.input_tokens, self.output_tokens)
        arrival_s, inputs, outputs = (column[requests] for column in columns)
        return type(self)(arrival_s, inputs, outputs, ids, ends, self.block_tokens)

    def chains(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (n,) the chain of each request, -1: none, and (n,) the tokens shared with it.

        Blocks that two or more requests have form a tree of prefixes. A chain is one path from the
        tree's root to a leaf. A request follows the tree up to the last block that it shares.
        Several chains may pass that block. The request joins the chain of the last request that
        had the block before. The first request at a block joins the chain that most requests
        follow from the block on.
        """
        node = self.prefixes()
        depth = self.depth
        count = np.bincount(node, minlength=1)
        is_shared = count[node] > 1
        n_shared = np.bincount(self.request[is_shared], minlength=len(self.ends))
        # From each shared block to the one after it that most requests have, and on to the end.
        after = np.arange(len(count))
        is_next = is_shared & (depth > 0)
        before = node[np.flatnonzero(is_next) - 1]
        following = node[is_next]
        order = np.argsort(count[following], kind="stable")
        after[before[order]] = following[order]
        while not np.array_equal(after, further := after[after]):
            after = further

        has_any = n_shared > 0
        last = self.starts + n_shared - 1
        chain = np.full(len(self.ends), -1)
        end = np.full(len(self.ends), -1)
        end[has_any] = node[last[has_any]]
        chain[has_any] = after[end[has_any]]

        # Where chains part, many requests may end. Each joins the chain of the last request that
        # passed there, so that no chain is crowded.
        is_inner = has_any & (chain != end)
        passed = np.flatnonzero(is_shared & np.isin(node, end[is_inner]))
        passed = passed[np.lexsort((-depth[passed], self.request[passed]))]
        used = dict[int, int]()
        for request, block in zip(self.request[passed], node[passed], strict=True):
            if block == end[request]:
                chain[request] = used.get(block, chain[request])
            used[block] = chain[request]

        return chain, np.minimum(n_shared * self.block_tokens, self.input_tokens)

    def draws(self, request: int, below: int, *seed: int) -> np.ndarray:
        """Return numbers below `below` to make a prompt of, one for each input token of a request.

        With the same `seed`, two requests have the same numbers as far as their block ids are the
        same, and independent ones after that.
        """
        position = np.arange(self.input_tokens[request])
        block_ids = self.ids[self.ends[request - 1] if request else 0 : self.ends[request]]
        key = np.full(len(position), ~request)  # ids are not below 0
        if len(block_ids):
            n_shared = min(len(block_ids) * self.block_tokens, len(position))
            key[:n_shared] = block_ids[position[:n_shared] // self.block_tokens]

        return mixed(*seed, key, position) % np.uint64(below)


def read_shared_blocks(trace: str | Path) -> TraceBlocks:
    """Read the lengths and block ids of a normalised trace; InputError: its blocks have no size."""
    require_trace(trace)
    wanted = ["arrival_s", "input_tokens", "output_tokens"]
    has_ids = HASH_IDS in pq.read_schema(trace).names
    table = read_parquet(trace, [*wanted, *[HASH_IDS] * has_ids], fix=MAKE_TRACE_AGAIN)
    arrival_s, inputs, outputs = (table[name].to_numpy() for name in wanted)
    if not has_ids:
        no_ids = np.empty(0, np.int64)
        ends = np.zeros(len(table), np.int64)
        return TraceBlocks(arrival_s, inputs, outputs, no_ids, ends, 0)

    block_tokens = read_provenance(trace).get("block_tokens")
    if not isinstance(block_tokens, int) or block_tokens < 1:
        problem = "the provenance does not say how many tokens a block has (block_tokens)"
        raise InputError(problem, file=trace, field=HASH_IDS, fix=MAKE_TRACE_AGAIN)

    lists = table[HASH_IDS]
    ids = pc.list_flatten(lists).cast(pa.int64()).to_numpy()
    ends = np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy(), dtype=np.int64)

    return TraceBlocks(arrival_s, inputs, outputs, ids, ends, block_tokens)


def mixed(*keys: np.ndarray | int) -> np.ndarray:
    """Return a pseudo-random uint64 for each tuple of whole numbers (SplitMix64)."""
    bits = np.zeros(1, np.uint64)
    for key in keys:
        bits = (bits ^ np.asarray(key).astype(np.int64).view(np.uint64)) + _STEP
        for shift, factor in _MIXERS:
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
        bits ^= bits >> np.uint64(31)
    return bits

"""The section Prefix reuse of a trace's page: which inputs a prefix cache would find again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sextant.pages.blocks import Block, Headline, Note, Section, Table
from sextant.pages.words import duration_words, number, percent
from sextant.workload.shared_blocks import read_shared_blocks

_AGES_S = (60, 600, 3600, 86_400)
_MOST = 0.9
_MILLION = 1_000_000
_RISE = 1.02  # a cache gets a line of the table if it finds this many times the line before


def measure_reuse(trace: Path) -> dict[str, Any] | None:
    """Return the shares of the inputs' blocks and tokens that a prefix cache would find.

    A block is found together with all blocks before it. The shares are stated for an unlimited
    cache, for blocks used again `within` an age, and `by_cache` size in tokens (a cache of inputs
    alone that drops the least recently used block). None: the source names no blocks.
    """
    blocks = read_shared_blocks(trace)
    if not len(blocks.ids):
        return None
    # Without a built module with Numba, which takes a second to load.
    from sextant.simulate.cache_depths import cache_depths

    depth, used_by = cache_depths(blocks.prefixes(), blocks.ends)
    is_repeated = depth >= 0
    tokens = blocks.tokens
    all_tokens = int(blocks.input_tokens.sum())
    arrival_s = blocks.arrival_s[blocks.request]
    last_s = float(blocks.arrival_s[-1])
    age_s = arrival_s[is_repeated] - blocks.arrival_s[used_by[is_repeated]]
    n_distinct = int(len(depth) - is_repeated.sum())
    held = 2 ** np.arange(np.ceil(np.log2(n_distinct)) + 1).astype(int)
    order = np.argsort(depth[is_repeated])
    n_found = np.searchsorted(depth[is_repeated][order], held)
    found_tokens = np.concatenate([[0], np.cumsum(tokens[is_repeated][order])])[n_found]
    n_repeating = len(np.unique(blocks.request[is_repeated]))
    return {
        "block_tokens": blocks.block_tokens,
        "n_blocks": len(depth),
        "n_distinct_blocks": n_distinct,
        "input_tokens": all_tokens,
        "repeated_fraction": float(is_repeated.mean()),
        "repeated_token_fraction": float(tokens[is_repeated].sum() / all_tokens),
        "repeating_request_fraction": n_repeating / len(blocks.ends),
        "by_cache": {
            "cache_tokens": (held * blocks.block_tokens).tolist(),
            "repeated_fraction": (n_found / len(depth)).tolist(),
            "repeated_token_fraction": (found_tokens / all_tokens).tolist(),
        },
        "within": [
            {"age_s": most_s, "repeated_fraction": float((age_s <= most_s).sum() / len(depth))}
            for most_s in _AGES_S
            if most_s <= max(last_s, _AGES_S[0])
        ],
    }


def show_reuse(measured: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_reuse` returns."""
    most = measured["repeated_fraction"]
    saved = percent(measured["repeated_token_fraction"])
    takeaway = (
        f"{percent(most)} of the {number(measured['n_blocks'])} blocks of "
        f"{measured['block_tokens']} input tokens repeat the beginning of an earlier request"
    )
    rows = []
    shown = 0.0
    enough = ""
    for cache_tokens, fraction, of_tokens in zip(*measured["by_cache"].values(), strict=True):
        is_large = cache_tokens >= _MILLION
        size = f"{number(cache_tokens / _MILLION)} million" if is_large else number(cache_tokens)
        if fraction >= _MOST * most:
            enough = enough or size
        if fraction > _RISE * shown:
            rows.append((size, percent(fraction), percent(of_tokens)))
            shown = fraction
    rest = f"; a cache of {enough} tokens finds nine tenths of them or more."
    takeaway += rest if most else ": a prefix cache would find nothing."
    text = (
        "The benchmarks of this pipeline run with prefix caching off, and their prompts share "
        f"nothing: a server computes all inputs, also the {saved} of the input tokens that an "
        "unlimited cache would find. sextant load --replay sends prompts that share what these "
        "share, sextant simulate --trace simulates them. The cache below is one server's, drops "
        "what was used longest ago, and holds no answers, whose blocks are not known."
    )
    rows.append(("no limit", percent(most), saved))
    ages = [
        (duration_words(row["age_s"]), percent(row["repeated_fraction"]))
        for row in measured["within"]
    ]
    blocks: list[Block] = [
        Headline(takeaway),
        Note(text),
        Table(("Cache (tokens)", "Blocks found", "Input tokens found"), rows),
        Table(("Used again within", "Blocks"), ages),
    ]
    return Section("Prefix reuse", blocks)

"""Prefix reuse: how much of the inputs earlier requests began with, over time and by cache size."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import duration_words, number, percent, time_unit
from sextant.report.trace.trace_file import TraceFile
from sextant.report.trace.traffic import bucket_s
from sextant.workload.shared_blocks import TraceBlocks, read_blocks

_AGES_S = (60, 600, 3600, 86_400)
_N_BUCKETS, _REQUESTS_PER_BUCKET = 100, 50
_MOST = 0.9
_MILLION = 1_000_000
_RISE = 1.02
"""A larger cache gets a line of the table if it finds so many times as much as the line above."""


def measure_reuse(trace: TraceFile) -> dict[str, Any] | None:
    """Return what share of the inputs' blocks repeats; None where the source names no blocks.

    A block repeats if an earlier request had it with all blocks before it. `repeated_fraction` is
    of the blocks, `repeated_token_fraction` of all input tokens, both with a cache that forgets
    nothing; so are `over_time` (by `start_s`, windows of `bucket_s`) and `within` (that came again
    after `age_s` at most). `by_cache` has both shares by the tokens of a cache that drops what was
    used longest ago; it holds inputs alone, since ids of the answers are not known.
    """
    blocks = read_blocks(trace.path)
    if not len(blocks.ids):
        return None
    # With Numba, which takes a second to load.
    from sextant.simulate.prefix_cache import cache_depths

    depth, used_by = cache_depths(blocks.prefixes(), blocks.ends)
    is_repeated, tokens, all_tokens = depth >= 0, blocks.tokens, int(blocks.input_tokens.sum())
    arrival_s = blocks.arrival_s[blocks.request]
    age_s = arrival_s[is_repeated] - blocks.arrival_s[used_by[is_repeated]]
    n_distinct = int(len(depth) - is_repeated.sum())
    held = 2 ** np.arange(np.ceil(np.log2(n_distinct)) + 1).astype(int)
    order = np.argsort(depth[is_repeated])
    found = np.searchsorted(depth[is_repeated][order], held)
    found_tokens = np.concatenate([[0], np.cumsum(tokens[is_repeated][order])])[found]
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
            "repeated_fraction": (found / len(depth)).tolist(),
            "repeated_token_fraction": (found_tokens / all_tokens).tolist(),
        },
        "within": [
            {"age_s": most_s, "repeated_fraction": float((age_s <= most_s).sum() / len(depth))}
            for most_s in _AGES_S
            if most_s <= max(blocks.arrival_s[-1], _AGES_S[0])
        ],
        **_over_time(blocks, arrival_s, is_repeated),
    }


def _over_time(
    blocks: TraceBlocks, arrival_s: np.ndarray, is_repeated: np.ndarray
) -> dict[str, Any]:
    n_buckets = min(max(len(blocks.ends) // _REQUESTS_PER_BUCKET, 1), _N_BUCKETS)
    size = bucket_s(float(blocks.arrival_s[-1]), n_buckets)
    bucket = (arrival_s // size).astype(int)
    n_blocks = np.bincount(bucket)
    n_repeated = np.bincount(bucket, weights=is_repeated)
    series = {
        "start_s": (np.arange(len(n_blocks)) * size).tolist(),
        "n_blocks": n_blocks.tolist(),
        "repeated_fraction": [
            n_again / n if n else None
            for n_again, n in zip(n_repeated.tolist(), n_blocks.tolist(), strict=True)
        ],
    }
    return {"bucket_s": size, "over_time": series}


def show_reuse(found: Mapping[str, Any], facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measure_reuse` found."""
    section = Section("Prefix reuse", _takeaway(found))
    section.notes.append(_left_out(found))
    section.figures += [_cache_figure(found), _time_figure(found, facts)]
    section.tables += [_cache_table(found), _age_table(found)]
    return section


def _takeaway(found: Mapping[str, Any]) -> str:
    share = percent(found["repeated_fraction"])
    told = (
        f"{share} of the {number(found['n_blocks'])} blocks of {found['block_tokens']} input "
        "tokens repeat the beginning of an earlier request"
    )
    by_cache, most = found["by_cache"], found["repeated_fraction"]
    if not most:
        return f"{told}: a prefix cache would find nothing."
    enough = next(
        tokens
        for tokens, fraction in zip(
            by_cache["cache_tokens"], by_cache["repeated_fraction"], strict=True
        )
        if fraction >= _MOST * most
    )
    return f"{told}; a cache of {_tokens(enough)} tokens finds nine tenths of them or more."


def _tokens(count: int) -> str:
    """Write a number of tokens, of a million on in millions."""
    return number(count) if count < _MILLION else f"{number(count / _MILLION)} million"


def _left_out(found: Mapping[str, Any]) -> str:
    saved = percent(found["repeated_token_fraction"])
    return (
        "With prefix caching off, as in the benchmarks of this pipeline, whose prompts share "
        f"nothing, a server computes all inputs, also the {saved} of the input tokens that a cache "
        "which forgets nothing would find. sextant load --replay sends prompts that share what "
        "these share, sextant simulate --trace simulates them."
    )


def _cache_figure(found: Mapping[str, Any]) -> tuple[str, str]:
    by_cache = found["by_cache"]
    curves = [
        Curve(name, by_cache["cache_tokens"], 100 * np.array(by_cache[key]))
        for name, key in (
            ("blocks", "repeated_fraction"),
            ("input tokens", "repeated_token_fraction"),
        )
    ]
    panel = Panel("", Axis("Cache (tokens)", is_log=True), Axis("Found (%)", low=0), curves)
    svg = panels_figure([panel], "Prefix reuse by cache size", n_columns=1, height_in=2.4)
    return svg, (
        "Share of the inputs' blocks and tokens that a prefix cache of one server finds, which "
        "drops what was used longest ago. Answers are not in it: their blocks are not known."
    )


def _time_figure(found: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[str, str]:
    time, series = time_unit(facts["duration_s"], facts["start_time"]), found["over_time"]
    across = np.array(series["start_s"]) / time.unit_s
    shares = [None if x is None else 100 * x for x in series["repeated_fraction"]]
    panel = Panel("", Axis(time.label), Axis("Repeated (%)", low=0), [Curve("", across, shares)])
    title = "Prefix reuse over time"
    svg = panels_figure([panel], title, n_columns=1, height_in=1.8, is_step=True)
    every = duration_words(found["bucket_s"]).removeprefix("1 ")
    return svg, f"Share of the blocks in each {every} that an earlier request had."


def _cache_table(found: Mapping[str, Any]) -> Table:
    rows, shown = [], 0.0
    for tokens, blocks, of_tokens in zip(*found["by_cache"].values(), strict=True):
        if blocks > _RISE * shown:
            rows.append((_tokens(tokens), percent(blocks), percent(of_tokens)))
            shown = blocks
    total = (percent(found["repeated_fraction"]), percent(found["repeated_token_fraction"]))
    rows.append(("no limit", *total))
    return Table(("Cache (tokens)", "Blocks found", "Input tokens found"), rows)


def _age_table(found: Mapping[str, Any]) -> Table:
    rows = [
        (duration_words(row["age_s"]), percent(row["repeated_fraction"])) for row in found["within"]
    ]
    return Table(("Used again within", "Blocks"), rows)

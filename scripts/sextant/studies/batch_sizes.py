"""The largest batch that memory holds: computed from facts, beside what is published."""

from functools import cache
from pathlib import Path

import pandas as pd

from sextant.cells.memory import assess
from sextant.hardware.gpu import Devices
from sextant.llm import LLM, load_llm
from sextant.studies.published_tables import (
    LARGEST_OPT_BATCH,
    OPT_BATCH_SIZES,
    OPT_INPUT_TOKENS,
    OPT_OUTPUT_TOKENS,
)

_LLMS = Path(__file__).parents[3] / "resources" / "llms"
_A100_40GB = Devices("gpu", 1, 40)
# The paper's own reading: 36 GB for a server that may use 90% of the device.
_A100_40GB_DECIMAL = Devices("gpu", 1, 40e9 / 2**30)
_UTILIZATION = 0.9
_WHOLE = OPT_INPUT_TOKENS + OPT_OUTPUT_TOKENS
ASSUMPTIONS = {
    f"{_WHOLE} tokens, 40 GiB": (_WHOLE, _A100_40GB),
    f"{_WHOLE} tokens, 40 GB": (_WHOLE, _A100_40GB_DECIMAL),
    f"{_WHOLE - OPT_OUTPUT_TOKENS // 2} tokens, 40 GB": (
        _WHOLE - OPT_OUTPUT_TOKENS // 2,
        _A100_40GB_DECIMAL,
    ),
    f"{OPT_INPUT_TOKENS} tokens, 40 GB": (OPT_INPUT_TOKENS, _A100_40GB_DECIMAL),
}
"""What a request in flight keeps in the KV cache, and the device's memory, by the column that
they are shown in. The first is how Sextant sizes a batch."""


def largest_power_of_two(value: float) -> int:
    """Return the largest power of two that is not above `value`; 0 below 1."""
    return 1 << (int(value).bit_length() - 1) if value >= 1 else 0


def largest_batch(
    llm: LLM, devices: Devices, memory_utilization: float, tokens_per_request: int
) -> int:
    """Return the largest batch, a power of two, whose KV cache fits beside the weights.

    Args:
        llm: the LLM's facts.
        devices: what one server runs on.
        memory_utilization: fraction of the memory that the server may use.
        tokens_per_request: what each request keeps in the KV cache.
    """
    found = assess(llm, devices, memory_utilization, tokens_per_request)
    return largest_power_of_two(found.max_batch_weight_tokens / tokens_per_request)


@cache
def opt_batch_sizes() -> pd.DataFrame:
    """Return Table 1 of Recasens et al.: a row an LLM, `published` and a column an assumption."""
    rows = []
    for llm_id, published in OPT_BATCH_SIZES.items():
        llm = load_llm(_LLMS / f"{llm_id}.json")
        sizes = {
            name: min(LARGEST_OPT_BATCH, largest_batch(llm, devices, _UTILIZATION, tokens))
            for name, (tokens, devices) in ASSUMPTIONS.items()
        }
        weights_gb = llm.weight_bytes / 1e9
        rows.append({"llm_id": llm_id, "weights_gb": weights_gb, "published": published, **sizes})
    return pd.DataFrame(rows)


def agreement_words(table: pd.DataFrame) -> str:
    """Say under which assumption the published batch sizes come out, and where ours differ."""
    equal = {name: table[name] == table["published"] for name in ASSUMPTIONS}
    parts = [f"{name}: {same.sum()} of {len(table)}" for name, same in equal.items()]
    ours = next(iter(ASSUMPTIONS))
    differing = table[~equal[ours]]
    words = f"Equal to the published sizes are, by assumption: {'; '.join(parts)}."
    if differing.empty:
        return words
    cases = [
        f"{row['llm_id']} {row[ours]} instead of {row['published']}"
        for _, row in differing.iterrows()
    ]
    return f"{words} Sized for whole requests, as Sextant does, come out {', '.join(cases)}."

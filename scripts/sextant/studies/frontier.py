"""Where throughput stops growing with the batch size, and which points no other beats."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from sextant import PROJECT
from sextant.facts.gpu import Devices
from sextant.facts.llm import LLM, load_llm
from sextant.points.verdict import assess

LEAST_GAIN = 0.1
"""A doubling of the batch size that gains less than this fraction of throughput is past the knee.

In a full batch, latency is batch size over request rate (Little's law), so a doubling that gains
g multiplies latency by 2 / (1 + g): below a gain of 10% it costs at least 82% more latency.
"""


def gains_per_doubling(sizes: Sequence[float], throughputs: Sequence[float]) -> list[float]:
    """Return the relative gain in throughput (any unit, above 0) from each batch size to the next,
    per doubling. Sizes ascend; a step by a factor of four counts as two equal doublings.
    """
    steps = zip(sizes, sizes[1:], throughputs, throughputs[1:], strict=False)
    return [(after / before) ** (1 / math.log2(b / a)) - 1 for a, b, before, after in steps]


def knee(
    sizes: Sequence[float], throughputs: Sequence[float], least_gain: float = LEAST_GAIN
) -> int | None:
    """Return the place of the smallest size from which no further doubling gains `least_gain`.

    Sizes and throughputs as in `gains_per_doubling`. All later steps count: one slow run is not a
    knee. None if the last step still gains as much, or if there is no step.
    """
    gains = gains_per_doubling(sizes, throughputs)
    growing = [place for place, gain in enumerate(gains) if gain >= least_gain]
    place = growing[-1] + 1 if growing else 0
    return place if place < len(gains) else None


def pareto_optimal(throughputs: Sequence[float], latencies: Sequence[float]) -> list[bool]:
    """Tell of each point whether no other has at least its throughput at no more latency; points
    that are equal in both do not beat each other.
    """
    rates, delays = np.asarray(throughputs, float), np.asarray(latencies, float)
    return [
        not np.any((rates >= rate) & (delays <= delay) & ((rates > rate) | (delays < delay)))
        for rate, delay in zip(rates, delays, strict=True)
    ]


OPT_BATCH_SIZES = {
    "facebook__opt-125m": 512,
    "facebook__opt-1.3b": 256,
    "facebook__opt-2.7b": 128,
    "facebook__opt-6.7b": 64,
    "facebook__opt-13b": 16,
}
"""Largest batch size, a power of two up to 512, on an A100 of 40 GB for requests of 512 input and
256 output tokens. Recasens et al.: Towards Pareto Optimal Throughput in Small Language Model
Serving, EuroMLSys 2024, Table 1."""

LARGEST_OPT_BATCH = 512
OPT_INPUT_TOKENS, OPT_OUTPUT_TOKENS = 512, 256

_LLMS = PROJECT / "resources" / "llms"
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
    """Return the largest batch, a power of two, of requests that each keep `tokens_per_request` in
    the KV cache, beside the weights in a fraction `memory_utilization` of the devices.
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

"""Configs of published LLMs, with the fields that matter to their size and cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from sextant.facts.llm import LLM

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())

OLDER: dict[str, tuple[dict[str, Any], int]] = {
    name: (row["config"], row["n_parameters"]) for name, row in _DATA["older"].items()
}
"""Configs whose fields are all needed, and numbers of parameters as published."""
PUBLISHED = OLDER | {
    name: (row["config"], row["n_parameters"]) for name, row in _DATA["published"].items()
}
"""Configs, and numbers of parameters as published."""
LLM_PILOT: dict[str, int] = _DATA["llm_pilot"]
"""Parameters of LLM-Pilot's LLMs. The counts of Flan-T5 and mT0 are those of their checkpoints,
whose heads are matrices of their own; that of Flan-UL2 is of one shared matrix."""
MODERN: dict[str, tuple[dict[str, Any], float, float]] = {
    name: (row["config"], row["billions"], row["active_billions"])
    for name, row in _DATA["modern"].items()
}
"""Configs, and billions of parameters as published: of all, and of those a token uses."""
FURTHER: dict[str, tuple[dict[str, Any], float]] = {
    name: (row["config"], row["billions"]) for name, row in _DATA["further"].items()
}
"""Configs of further families, and billions of parameters as published (of the text part)."""
REFERENCE: dict[str, tuple[dict[str, Any], int]] = {
    name: (row["config"], row["n_parameters"]) for name, row in _DATA["reference"].items()
}
"""By family: the sizes that its class in `transformers` has by default, and the parameters of a
model of that class (5.24.0, on the meta device; `test_reference.py` counts them again)."""
SHIPPED: dict[str, tuple[float, float]] = {
    name: (row["billions"], row["active_billions"]) for name, row in _DATA["shipped"].items()
}
"""By `resources/llms`: billions of parameters as published, of all and of those a token uses."""

QWEN3_5_27B = MODERN["Qwen3.5-27B"][0]
DEEPSEEK_V4_FLASH = MODERN["DeepSeek-V4-Flash"][0]
DEEPSEEK_V3 = PUBLISHED["DeepSeek-V3"][0]
MIXTRAL_8X7B = PUBLISHED["Mixtral-8x7B"][0]
MISTRAL_7B = PUBLISHED["Mistral-7B"][0]
QWEN3_30B_A3B = PUBLISHED["Qwen3-30B-A3B"][0]
GEMMA3_4B = PUBLISHED["Gemma-3-4B"][0]
MISTRAL_SMALL_24B = PUBLISHED["Mistral-Small-24B"][0]
NEMOTRON_3_NANO = MODERN["Nemotron-3-Nano-30B-A3B"][0]
LLAMA4_SCOUT = PUBLISHED["Llama-4-Scout"][0]
GEMMA4_26B = MODERN["Gemma-4-26B-A4B"][0]
MIMO_V2_FLASH = MODERN["MiMo-V2-Flash"][0]


def check_counts(llm: LLM, total: float, active: float, rel: float = 0.01) -> None:
    """Compare with what the makers say, who round, and may count no head or the embedding too."""
    assert llm.n_parameters / 1e9 == pytest.approx(total, rel=rel)
    head = llm.vocab_size * llm.hidden_size
    low, high = llm.n_flop_parameters - head, llm.n_flop_parameters + head
    assert low / 1e9 * 0.97 <= active <= high / 1e9 * 1.06

"""From a `config.json` to the facts of the LLM."""

from collections.abc import Callable
from pathlib import Path

from sextant.facts.llm import gpt_like, hybrid, latent, llama_like, t5, uneven
from sextant.facts.llm.config import Config, read_config
from sextant.facts.llm.facts import LLM

FAMILIES: dict[str, Callable[[Config], LLM]] = {
    **gpt_like.FAMILIES,
    **llama_like.FAMILIES,
    **latent.FAMILIES,
    **hybrid.FAMILIES,
    **uneven.FAMILIES,
    **t5.FAMILIES,
}
"""What counts a family's parameters, by `model_type`."""


def load_llm(path: str | Path, dtype: str | None = None) -> LLM:
    """Read the facts of an LLM from its `config.json`.

    Weights and KV cache have the `dtype` they are served in; without one, that of the config.

    Of a vision-language config the text part (`text_config`) is read: the vision tower and its
    projector are counted nowhere.

    Raises:
        InputError: the file is not JSON, its family is unknown, a field is missing, or one that
            changes the size or the cost is not known in its family.
    """
    config = read_config(path, dtype)
    family = config.word("model_type")
    if family not in FAMILIES:
        fix = (
            f"use one of {', '.join(sorted(FAMILIES))}, give --parameters, --layers and "
            "--kv-bytes-per-token in place of it, or add the family to sextant/facts/llm/"
        )
        raise config.error(f"unknown family {family!r}", "model_type", fix)
    llm = FAMILIES[family](config)
    config.refuse_what_nobody_asked_for()
    return llm

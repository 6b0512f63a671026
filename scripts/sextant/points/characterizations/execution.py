"""How an engine executes an LLM: which LLMs a measured one tells about."""

from collections.abc import Mapping

from sextant.facts.llm import LLM
from sextant.points.characterizations.features import Features

ENCODER_DECODER, PAGED, PADDED = "encoder-decoder", "paged", "padded"
"""How an engine executes an LLM: padded to the longest request, with or without an encoder, or
with attention over a paged (unpadded) KV cache."""


def execution_classes(llms: Mapping[str, LLM], published: Features | None) -> dict[str, str]:
    """Return how each LLM is executed: `paged`, `padded` or `encoder-decoder`.

    A characterization whose features say `is_flash_attention` tells which decoders ran padded,
    and so of others of the same type. All others are taken for paged, as current engines do.
    """
    flash: dict[str, float] = {}
    if published is not None and "is_flash_attention" in published.llms:
        flash = published.llms["is_flash_attention"].astype(float).to_dict()
    by_type = {llms[llm_id].llm_type: value for llm_id, value in flash.items() if llm_id in llms}
    classes = {}
    for llm_id, llm in llms.items():
        is_padded = flash.get(llm_id, by_type.get(llm.llm_type)) == 0
        decoder = PADDED if is_padded else PAGED
        classes[llm_id] = ENCODER_DECODER if llm.is_encoder_decoder else decoder
    return classes

"""Facts of an LLM for a question: what was assumed, and what is in memory beside the text part.

`llm.load_llm` gives the facts by the config alone, which measurements are kept with.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sextant.facts.gpu import GIB
from sextant.facts.llm import LLM
from sextant.facts.llm_config import DTYPE_BYTES, read_config
from sextant.facts.llm_families import family_of
from sextant.facts.llm_variants import facts_of
from sextant.facts.llm_weights import (
    StoredWeights,
    count_encoder_parameters,
    read_stored_weights,
)


class LLMReading(NamedTuple):
    """The facts of an LLM by its config, and what was assumed to find them."""

    llm: LLM
    assumed: Sequence[str]  # one sentence each; empty: the config says all


def read_llm(path: str | Path, dtype: str | None = None) -> LLMReading:
    """Read the facts of an LLM, as `load_llm` does, and what was assumed."""
    config = read_config(path, dtype)
    llm = LLM(**facts_of(config, family_of(config)))
    return LLMReading(llm, tuple(config.assumed))


def read_whole_llm(path: str | Path, dtype: str | None = None) -> LLMReading:
    """Read the facts of an LLM with what it has in memory beside its text part.

    Weights that lie beside the config count before any formula. Without them an encoder of images
    is estimated. A checkpoint of 32 bits is served in 16, as vLLM does unless it is asked for more.

    Raises:
        InputError: as of `load_llm`, or a file of weights is damaged.
    """
    reading = read_llm(path, dtype)
    notes = [*reading.assumed]
    llm = reading.llm
    stored = read_stored_weights(path, llm.n_layers)
    own = llm if dtype is None else read_llm(path).llm
    if stored is not None:
        llm = _as_stored(llm, own, stored)
        note = f"Weights: {stored.n_bytes / GIB:.2f} GiB, as {stored.file} beside the config says"
        notes.append(f"{note} (its sizes alone: {own.weight_bytes / GIB:.2f} GiB).")
    elif n := count_encoder_parameters(path, llm.hidden_size):
        llm = replace(llm, beside_weight_bytes=n * DTYPE_BYTES["bfloat16"])
        notes.append(
            f"The encoder of images has about {n / 1e9:.2f} billion parameters "
            f"({llm.beside_weight_bytes / GIB:.2f} GiB), which are counted as weights alone."
        )
    if dtype is None and llm.dtype == "float32":
        llm = replace(llm, dtype="bfloat16", beside_weight_bytes=llm.beside_weight_bytes // 2)
        notes.append(
            "The checkpoint has weights of 32 bits: they are served in 16, as vLLM does by itself "
            "(--dtype fp32 keeps them)."
        )
    return LLMReading(llm, tuple(notes))


def _as_stored(llm: LLM, own: LLM, stored: StoredWeights) -> LLM:
    """Return an LLM with the parameters and bytes of its files; `own` is as its config serves it.

    Bytes are those of the files where the LLM is served as its config says.
    """
    if stored.n_text_parameters is not None and not own.weight_format:
        llm = replace(llm, n_parameters=stored.n_text_parameters)
        own = replace(own, n_parameters=stored.n_text_parameters)
    beside = stored.n_bytes - own.weight_bytes
    if llm.dtype != own.dtype:
        beside = max(beside, 0)
    return replace(llm, beside_weight_bytes=beside)

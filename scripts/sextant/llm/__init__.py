"""Facts of an LLM, computed from the shapes in its Hugging Face `config.json`."""

from sextant.llm.facts import DTYPE_BYTES, LLM, UNBOUNDED_TOKENS
from sextant.llm.load import FAMILIES, load_llm

__all__ = ["DTYPE_BYTES", "FAMILIES", "LLM", "UNBOUNDED_TOKENS", "load_llm"]

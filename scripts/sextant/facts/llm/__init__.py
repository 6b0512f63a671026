"""Facts of an LLM, computed from the shapes in its Hugging Face `config.json`.

In: a `config.json`. Out: an `LLM` (layers, heads, parameters, bytes of weights and KV cache), or an
error that names the field that is missing or unknown. Read `facts` (the result), `load` (how it is
made, and how it is served in another precision), `config` (strict reading), `layers` and
`quantization` (counting), then the families: `llama_like`, `gpt_like`, `hybrid` (and latent),
`uneven`.
"""

from sextant.facts.llm.facts import DTYPE_BYTES, LLM, UNBOUNDED_TOKENS
from sextant.facts.llm.load import FAMILIES, KV_PRECISIONS, PRECISIONS, load_llm, served

__all__ = [
    "DTYPE_BYTES",
    "FAMILIES",
    "KV_PRECISIONS",
    "LLM",
    "PRECISIONS",
    "UNBOUNDED_TOKENS",
    "load_llm",
    "served",
]

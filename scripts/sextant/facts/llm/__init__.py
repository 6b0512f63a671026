"""Facts of an LLM, computed from the shapes in its Hugging Face `config.json`.

In: a `config.json`. Out: an `LLM` (layers, heads, parameters, bytes of weights and KV cache), or an
error that names the field that is missing or unknown. Read `facts` (the result), `config` (strict
reading), `layers` (counting), then the families: `llama_like`, `gpt_like`, `latent`, `hybrid`,
`uneven`, `t5`, with `experts`, `sliding_window` and `quantization` (with `unquantized`), which
several of them share.
`precision` gives the facts of an LLM that is served in another precision than its config says.
"""

from sextant.facts.llm.facts import DTYPE_BYTES, LLM, UNBOUNDED_TOKENS
from sextant.facts.llm.load import FAMILIES, load_llm
from sextant.facts.llm.precision import KV_PRECISIONS, PRECISIONS, served

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

"""Counts the parameters of a decoder from its sizes, and checks that the sizes fit together."""

from typing import Any, NamedTuple

from sextant.llm.config import Config
from sextant.llm.facts import DTYPE_BYTES, LLM
from sextant.llm.quantization import quantization


class Sizes(NamedTuple):
    """The sizes that every decoder has."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int


class Experts(NamedTuple):
    """The layers of a mixture of experts; a dense LLM has none."""

    layers: int = 0
    n: int = 0
    per_token: int = 0
    ffn: int = 0
    shared_ffn: int = 0
    """Width of what serves every token of these layers, beside the routed experts."""
    router: int = 0
    """Parameters of one layer's routing matrices."""


def head_dim(config: Config, hidden: int, heads: int) -> int:
    """Return the size of heads that share the hidden size."""
    if hidden % heads:
        problem = f"{heads} heads do not divide the hidden size {hidden}"
        raise config.error(problem, "num_attention_heads", "correct one of the two")
    return hidden // heads


def biases(s: Sizes, *, qkv: bool = False, out: bool = False, mlp: bool = False) -> int:
    """Return the biases of one layer: of Q, K and V; of attention's output; of a plain MLP."""
    in_attention = (s.heads + 2 * s.kv_heads) * s.head_dim
    return qkv * in_attention + out * s.hidden + mlp * (s.ffn + s.hidden)


def decoder(
    config: Config,
    s: Sizes,
    *,
    is_tied: bool,
    vectors: int,
    mlp_matrices: int = 3,
    attention: int | None = None,
    head: int | None = None,
    positions: int = 0,
    experts: Experts | None = None,
    **facts: Any,
) -> LLM:
    """Return the facts of a decoder-only LLM.

    Args:
        config: what the sizes were read from.
        s: its sizes.
        is_tied: whether the output head is the embedding's matrix.
        vectors: biases and norms of all layers and of the head.
        mlp_matrices: 3 in a gated MLP, 2 in a plain one.
        attention: matrices of one layer's attention, if not those of Q, K, V and output.
        head: matrices between the layers and the vocabulary, if not hidden size × vocabulary.
        positions: parameters of the table of positions.
        experts: layers that have experts in place of the MLP.
        facts: other fields of `LLM`.
    """
    moe, width = experts or Experts(), mlp_matrices * s.hidden
    if attention is None:
        attention = 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim
    if moe.per_token > moe.n:
        problem = f"a token uses {moe.per_token} of {moe.n} experts"
        raise config.error(problem, "num_experts_per_tok", "correct one of the two")
    always = width * ((s.layers - moe.layers) * s.ffn + moe.layers * moe.shared_ffn)
    one_of_each = moe.layers * width * moe.ffn
    routed, used = moe.n * one_of_each, moe.per_token * one_of_each
    shared = s.layers * attention + moe.layers * moe.router + always
    head = s.hidden * s.vocab if head is None else head
    embedding = 0 if is_tied else s.hidden * s.vocab
    return assemble(
        config,
        attention_matrices=s.layers * attention,
        mlp_matrices=always + routed,
        n_layers=s.layers,
        hidden_size=s.hidden,
        ffn_size=moe.ffn if moe.layers else s.ffn,
        n_heads=s.heads,
        n_kv_heads=s.kv_heads,
        head_dim=s.head_dim,
        vocab_size=s.vocab,
        context_tokens=s.context,
        n_parameters=embedding + positions + head + shared + routed + vectors,
        n_flop_parameters=head + shared + used,
        n_experts=moe.n if moe.layers else 0,
        n_experts_per_token=moe.per_token if moe.layers else 0,
        n_expert_parameters=routed,
        **facts,
    )


def assemble(config: Config, attention_matrices: int, mlp_matrices: int, **facts: Any) -> LLM:
    """Build an `LLM` with what all families share: data type and quantization."""
    dtype = config.word("dtype")
    if dtype not in DTYPE_BYTES:
        problem = f"unknown type {dtype!r}"
        raise config.error(problem, "dtype", f"use one of {', '.join(DTYPE_BYTES)}")
    if facts["n_heads"] % facts["n_kv_heads"]:
        problem = f"{facts['n_heads']} heads cannot share {facts['n_kv_heads']} KV heads evenly"
        fix = "correct it or num_attention_heads"
        raise config.error(problem, "num_key_value_heads", fix)
    experts = facts.get("n_expert_parameters", 0)
    bits, n_quantized = quantization(config, attention_matrices, mlp_matrices, experts)
    return LLM(
        llm_type=config.get("model_type"),
        dtype=dtype,
        weight_bits=bits,
        n_quantized_parameters=n_quantized,
        **facts,
    )

"""Counts the parameters of a decoder: its sizes, its experts and its sliding windows."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sextant.base.sheets import read_yaml
from sextant.facts.llm.facts import DTYPE_BYTES, LLM, Config
from sextant.facts.llm.quantization import Matrices, quantization


class Family(NamedTuple):
    """A row of families.yaml."""

    counted: str = "llama"
    requires: Mapping[str, Any] = {}
    ignores: Sequence[str] = ()
    sizes: Mapping[str, str] = {}
    """The config's names of fields of `Sizes`, where they are other ones than `_FIELDS` has."""
    defaults: Mapping[str, int] = {}
    is_tied: bool = False
    """Whether the embeddings are tied where the config does not say."""
    kv_heads_follow: bool = False
    """Whether a config without `num_key_value_heads` means that no heads share K and V."""
    has_head_dim: bool = False
    """Whether `head_dim` has to be there; otherwise the heads may share the hidden size."""
    has_qkv_bias: bool = False
    """Whether Q, K and V have biases unless `qkv_bias` says no."""
    reads_attention_bias: bool = False
    """Whether `attention_bias` gives Q, K, V and the output biases."""
    norms: int = 2
    """Norms of a layer."""
    qk_norm: str = ""
    """Norms of Q and K: `head` over a head, `all` over all heads at once, or none."""
    window: str = ""
    """Which layers have a sliding window, one of `WINDOWS`."""
    experts: str = ""
    """How experts are read, one of `EXPERTS`."""
    is_sparse: bool = False
    """Whether indexers choose the tokens that attention looks at."""
    ffn_ratio: int = 0
    """Width of the MLP over the hidden size where its field is absent; 0: it has to be there."""
    has_mlp_bias_alone: bool = False
    """Whether attention has no biases."""
    has_head_bias: bool = False


@cache
def families() -> dict[str, Family]:
    """Return all families by `model_type`; one that is like another comes after it."""
    found: dict[str, Family] = {}
    for name, row in read_yaml(Path(__file__).with_name("families.yaml")).items():
        base = found[row.pop("same_as")] if "same_as" in row else Family()
        found[name] = base._replace(**row)
    return found


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
    """Parameters of one layer's routing matrices, and of those between it and its experts."""
    width: int = 0
    """Numbers that go into an expert, if they are not the hidden state."""


_FIELDS = {
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
}


def read_sizes(
    config: Config, defaults: Mapping[str, int | None] | None = None, **own: int | str
) -> Sizes:
    """Return the sizes of a decoder.

    Args:
        defaults: sizes by field that the published configs leave to the family's class.
        own: a number for what the config does not say in one field, a text for a field of
            another name.
    """
    values: dict[str, int | str] = {**_FIELDS, **own}
    sizes = {
        size: config.integer(value, (defaults or {}).get(value))
        if isinstance(value, str)
        else value
        for size, value in values.items()
    }
    return Sizes(**sizes)


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
    vectors: int,
    is_tied: bool = False,
    mlp_matrices: int = 3,
    attention: int | None = None,
    mlp: int | None = None,
    head: int | None = None,
    positions: int = 0,
    experts: Experts | None = None,
    **facts: Any,
) -> LLM:
    """Return the facts of a decoder-only LLM.

    Args:
        vectors: biases and norms of all layers and of the head.
        is_tied: whether the output head is the embedding's matrix, unless the config says.
        mlp_matrices: 3 in a gated MLP, 2 in a plain one.
        attention: matrices of all layers' attention, if not those of Q, K, V and output, or of
            what takes its place.
        mlp: matrices of all layers' MLPs beside the experts, if not of every layer without experts.
        head: matrices between the layers and the vocabulary, if not hidden size × vocabulary.
        positions: parameters of the table of positions.
        experts: layers that have experts in place of the MLP.
        facts: other fields of `LLM`.
    """
    moe, width = experts or Experts(), mlp_matrices * s.hidden
    if attention is None:
        attention = s.layers * 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim
    if mlp is None:
        mlp = width * (s.layers - moe.layers) * s.ffn
    if moe.per_token > moe.n:
        problem = f"a token uses {moe.per_token} of {moe.n} experts"
        raise config.error(problem, "num_experts_per_tok", "correct one of the two")
    shared_experts = width * moe.layers * moe.shared_ffn
    one_of_each = moe.layers * mlp_matrices * (moe.width or s.hidden) * moe.ffn
    routed, used = moe.n * one_of_each, moe.per_token * one_of_each
    shared = attention + moe.layers * moe.router + mlp + shared_experts
    head = s.hidden * s.vocab if head is None else head
    is_tied = config.flag("tie_word_embeddings", default=is_tied)
    embedding = 0 if is_tied else s.hidden * s.vocab
    is_even = not facts.get("n_attention_layers") and not facts.get("sliding_kv_values")
    n_dense = s.layers - moe.layers
    return assemble(
        config,
        Matrices(attention, mlp, shared_experts, routed, s.layers, n_dense, is_even),
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
        **facts,
    )


def assemble(config: Config, matrices: Matrices, **facts: Any) -> LLM:
    """Build an `LLM` with what all families share: data type and quantization."""
    dtype = _dtype(config)
    if facts["n_heads"] % facts["n_kv_heads"]:
        problem = f"{facts['n_heads']} heads cannot share {facts['n_kv_heads']} KV heads evenly"
        fix = "correct it or num_attention_heads"
        raise config.error(problem, "num_key_value_heads", fix)
    return LLM(
        llm_type=config.get("model_type"),
        dtype=dtype,
        n_expert_parameters=matrices.experts,
        n_attention_parameters=matrices.attention,
        n_mlp_parameters=matrices.mlp + matrices.shared_experts,
        **quantization(config, matrices),
        **facts,
    )


def _dtype(config: Config) -> str:
    # The configs of FP8 and MXFP4 checkpoints may leave it out; their other weights have bfloat16.
    packed = config.optional("quantization_config")
    method = packed.get("quant_method") if isinstance(packed, dict) else None
    if config.optional("dtype") is None and method in ("fp8", "mxfp4"):
        return "bfloat16"
    dtype = config.word("dtype")
    if dtype not in DTYPE_BYTES:
        problem = f"unknown type {dtype!r}"
        raise config.error(problem, "dtype", f"use one of {', '.join(DTYPE_BYTES)}")
    return dtype


def read_experts(
    config: Config,
    s: Sizes,
    layers: int,
    n: str = "num_experts",
    *,
    per_token: str = "num_experts_per_tok",
    ffn: str = "moe_intermediate_size",
    shared_ffn: int = 0,
) -> Experts:
    """Return the experts of so many layers.

    Args:
        n: the field with the number of routed experts of a layer.
        per_token: the field with how many of them a token uses.
        ffn: the field with the width of one of them.
        shared_ffn: width of the shared ones together.
    """
    count = config.integer(n)
    width = config.integer(ffn)
    return Experts(layers, count, config.integer(per_token), width, shared_ffn, s.hidden * count)


def experts_everywhere(config: Config, s: Sizes) -> Experts:
    """Mixtral, GPT-OSS and MiniMax: experts of the MLP's width in every layer."""
    return read_experts(config, s, s.layers, "num_local_experts", ffn="intermediate_size")


def qwen2_experts(config: Config, s: Sizes, step: int | None = None) -> Experts:
    """Qwen 1.5, 2 and Next: beside the routed experts a shared one behind a gate of its own."""
    routed = qwen3_experts(config, s, step)
    shared = config.integer("shared_expert_intermediate_size")
    return routed._replace(shared_ffn=shared, router=routed.router + s.hidden)


def qwen3_experts(config: Config, s: Sizes, step: int | None = None) -> Experts:
    """Experts in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`.

    `step` is what a config without that field means.
    """
    step = config.integer("decoder_sparse_step", default=step)
    # Qwen 1.5 is older than this field.
    dense = set(config.listing("mlp_only_layers", int, default=[]))
    layers = [i for i in range(s.layers) if i not in dense and (i + 1) % step == 0]
    return read_experts(config, s, len(layers))


def llama4_experts(config: Config, s: Sizes) -> Experts:
    """Llama 4: experts in every `interleave_moe_layer_step`-th layer, and a shared one there."""
    step = config.integer("interleave_moe_layer_step")
    listed = config.listing("moe_layers", int, default=list(range(step - 1, s.layers, step)))
    layers = len(set(listed) & set(range(s.layers)))
    ffn = "intermediate_size"
    return read_experts(config, s, layers, "num_local_experts", ffn=ffn, shared_ffn=s.ffn)


def step_experts(config: Config, s: Sizes) -> Experts:
    """Step 3.5 and 3.7: a shared expert beside the routed ones, after a few dense layers."""
    layers = s.layers - config.integer("first_k_dense_replace", least=0, most=s.layers)
    return read_experts(config, s, layers, shared_ffn=config.integer("share_expert_dim"))


def deepseek_experts(config: Config, s: Sizes) -> Experts:
    """Shared experts beside the routed ones, after `first_k_dense_replace` dense layers."""
    dense = config.integer("first_k_dense_replace", least=0)
    config.require("moe_layer_freq", 1)
    if dense > s.layers:
        fix = "correct one of the two"
        raise config.error(f"{dense} of {s.layers} layers", "first_k_dense_replace", fix)
    n_shared = config.integer("n_shared_experts", least=0)
    shared = n_shared * config.integer("moe_intermediate_size")
    return read_experts(config, s, s.layers - dense, "n_routed_experts", shared_ffn=shared)


EXPERTS = {
    "everywhere": experts_everywhere,
    "qwen2": qwen2_experts,
    "qwen3": qwen3_experts,
    "step": step_experts,
}


def window_facts(
    config: Config,
    layers: int,
    rule: str = "",
    name: str = "sliding_window",
    kind: str = "sliding_attention",
) -> dict[str, Any]:
    """Return the facts `sliding_window_tokens` and `n_sliding_layers`; none without a window.

    `rule`, one of `WINDOWS`, counts the layers where the config does not list their types; `name`
    is the config's for the window's tokens, `kind` that of its layers in `layer_types`.
    """
    if not rule:
        return {}
    n_sliding = WINDOWS[rule](config, layers)
    if config.optional("layer_types") is not None:
        types = config.by_layer("layer_types", layers, ("full_attention", kind))
        n_sliding = types.count(kind)
    if not n_sliding:
        config.ignore(name)
        return {}
    tokens = config.integer(name)
    return {"sliding_window_tokens": tokens, "n_sliding_layers": n_sliding}


def all_layers(config: Config, layers: int) -> int:
    """Mistral and its kind: a `sliding_window` that is set holds for all layers."""
    return layers if config.optional("sliding_window") is not None else 0


def upper_layers(config: Config, layers: int) -> int:
    """Qwen: the layers from `max_window_layers` on, and only if `use_sliding_window`."""
    config.ignore("max_window_layers")
    if not config.flag("use_sliding_window", default=False):
        return 0
    return max(0, layers - config.integer("max_window_layers", least=0))


def every_other(config: Config, layers: int) -> int:
    """Gemma 2 and GPT-OSS: the first layer, the third, and so on."""
    return -(-layers // 2)


def all_but_every_nth(config: Config, layers: int) -> int:
    """Gemma 3: every sixth layer (`sliding_window_pattern`) sees all tokens."""
    return layers - layers // config.integer("sliding_window_pattern", default=6)


def all_but_every_fourth(config: Config, layers: int) -> int:
    """Llama 4: every fourth layer, without rotary positions, sees all tokens, others a chunk."""
    config.require("no_rope_layer_interval", 4)
    return layers - layers // 4 if config.optional("attention_chunk_size") is not None else 0


WINDOWS: dict[str, Callable[[Config, int], int]] = {
    rule.__name__: rule
    for rule in (all_layers, upper_layers, every_other, all_but_every_nth, all_but_every_fourth)
}

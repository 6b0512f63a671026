"""Counts an LLM's parameters, family by family, from the sizes in its `config.json`.

`families.yaml` names a function for each family; the function returns the fields of `LLM`. This
file has the families whose layers are alike: Llama's kind (RMS norms, rotary positions, a gated
MLP), GPT's kind (layer norms, an MLP of two matrices, mostly with biases) and T5. `llm_hybrids` has
the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sextant.base.sheets import read_yaml
from sextant.facts.llm_config import DTYPE_BYTES, Config, Matrices, quantization

UNBOUNDED_TOKENS = 2**31 - 1  # the context of an LLM whose positions set no limit
Facts = dict[str, Any]


class SizeRules(NamedTuple):
    """Where a family's config has its sizes."""

    size_names: Mapping[str, str] = {}  # the config's names of sizes, where not `_FIELDS`
    defaults: Mapping[str, int] = {}  # sizes that the published configs leave to the class
    kv_heads_follow: bool = False  # without `num_key_value_heads` no heads share K and V
    has_head_dim: bool = False  # `head_dim` has to be there; else heads may share the hidden size
    ffn_ratio: int = 0  # MLP over hidden size where its field is absent; 0: it has to be there
    dense_ffn: str = ""  # field with the width of dense MLPs beside layers with experts, if any


class BiasRules(NamedTuple):
    """Which matrices of a family have biases."""

    has_qkv_bias: bool = False  # Q, K and V have biases unless `qkv_bias` says no
    reads_attention_bias: bool = False  # `attention_bias` gives Q, K, V and output biases
    has_bias: bool = True  # attention and MLP of GPT's kind have biases
    has_mlp_bias_alone: bool = False  # in GPT's kind, attention has no biases
    has_head_bias: bool = False


class WindowRules(NamedTuple):
    """Which layers of a family have a sliding window (`sliding_window`)."""

    window: str = ""
    window_fields: Sequence[str] = ("sliding_window", "sliding_attention")  # its width, its layers


class Family(NamedTuple):
    """A row of families.yaml, which has the fields of the groups one by one."""

    counted: str = "llama"  # the function, here or in `llm_hybrids`, that counts its parameters
    requires: Mapping[str, Any] = {}
    ignores: Sequence[str] = ()
    is_tied: bool = False  # whether the embeddings are tied where the config does not say
    norms: int = 2  # norms of a layer
    qk_norm: str = ""  # norms of Q and K: `head` over a head, `all` over all heads at once, or none
    experts: str = ""  # how experts are read (`experts_by`)
    is_sparse: bool = False  # whether indexers choose the tokens that attention looks at
    sizes: SizeRules = SizeRules()
    biases: BiasRules = BiasRules()
    windows: WindowRules = WindowRules()

    def with_row(self, row: Mapping[str, Any]) -> "Family":
        """Return the family with the values of a row of families.yaml in place of its own."""
        changes = dict(row)
        for group in ("sizes", "biases", "windows"):
            rules = getattr(self, group)
            of_group = {name: changes.pop(name) for name in rules._fields if name in changes}
            changes[group] = rules._replace(**of_group)
        return self._replace(**changes)


@cache
def families() -> dict[str, Family]:
    """Return all families by `model_type`; a family with `same_as` comes after its model."""
    by_type: dict[str, Family] = {}
    for name, row in read_yaml(Path(__file__).with_name("families.yaml")).items():
        model = by_type[row.pop("same_as")] if "same_as" in row else Family()
        by_type[name] = model.with_row(row)
    return by_type


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


_FIELDS: dict[str, Any] = {
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
}


class Experts(NamedTuple):
    """The layers of a mixture of experts; a dense LLM has none."""

    layers: int = 0  # layers with experts
    n: int = 0  # routed experts of a layer
    per_token: int = 0  # routed experts of a layer that one token uses
    ffn: int = 0  # width of a routed expert
    shared_ffn: int = 0  # width of the shared expert that serves every token
    router: int = 0  # parameters of a layer's routing, and between routing and experts
    width: int = 0  # numbers that go into an expert, if they are not the hidden state


@dataclass(frozen=True)
class Parts:
    """Parameters of a decoder that its sizes alone do not give.

    A part that is None has the usual form: `attention` is Q, K, V and the output matrix of all
    layers, `mlp` is an MLP in each layer without experts, `head` is one matrix from the hidden
    state to the vocabulary.
    """

    vectors: int  # biases and norms of all layers and of the head
    is_tied: bool = False  # whether the embeddings are tied where the config does not say
    mlp_matrices: int = 3  # 3 in a gated MLP, 2 in a plain one
    attention: int | None = None  # matrices of all layers' attention, or of what replaces it
    mlp: int | None = None  # matrices of all MLPs but the experts
    head: int | None = None  # matrices between the last layer and the vocabulary
    positions: int = 0  # the table of positions
    experts: Experts = Experts()  # noqa: RUF009


@dataclass(frozen=True)
class CacheFacts:
    """What requests keep in memory, where layers differ; fields of `LLM`, with its defaults."""

    kv_latent_size: int = 0
    kv_values: float = 0.0
    sliding_kv_values: float = 0.0
    sliding_window_tokens: int = 0
    n_sliding_layers: int = 0
    n_attention_layers: int = 0
    state_bytes_per_request: int = 0


def read_sizes(
    config: Config, defaults: Mapping[str, int | None] | None = None, **sources: int | str
) -> Sizes:
    """Return the sizes of a decoder.

    `defaults`, by field of the config, are sizes that the published configs leave to the family's
    class. `sources`, by size (`Sizes`), are numbers that no field says, or names of other fields.
    """
    sizes = _FIELDS | sources
    for size, field in sizes.items():
        if isinstance(field, str):
            sizes[size] = config.integer(field, (defaults or {}).get(field))
    return Sizes(**sizes)


def _head_dim(config: Config, hidden: int, heads: int) -> int:
    if hidden % heads:
        problem = f"{heads} heads do not divide the hidden size {hidden}"
        raise config.error(problem, "num_attention_heads", "correct one of the two")
    return hidden // heads


def _biases(s: Sizes, *, qkv: bool = False, out: bool = False, mlp: bool = False) -> int:
    in_attention = (s.heads + 2 * s.kv_heads) * s.head_dim
    return qkv * in_attention + out * s.hidden + mlp * (s.ffn + s.hidden)


def decoder(config: Config, s: Sizes, parts: Parts, cache: CacheFacts = CacheFacts()) -> Facts:
    """Return the facts of a decoder-only LLM; InputError: a token uses more experts than exist."""
    moe = parts.experts
    if moe.per_token > moe.n:
        problem = f"a token uses {moe.per_token} of {moe.n} experts"
        raise config.error(problem, "num_experts_per_tok", "correct one of the two")

    attention = parts.attention
    if attention is None:
        attention = s.layers * 2 * s.hidden * (s.heads + s.kv_heads) * s.head_dim

    width = parts.mlp_matrices * s.hidden
    n_dense = s.layers - moe.layers
    mlp = width * n_dense * s.ffn if parts.mlp is None else parts.mlp

    shared_experts = width * moe.layers * moe.shared_ffn
    one_of_each = moe.layers * parts.mlp_matrices * (moe.width or s.hidden) * moe.ffn
    routed = moe.n * one_of_each
    used = moe.per_token * one_of_each
    shared = attention + moe.layers * moe.router + mlp + shared_experts

    head = s.hidden * s.vocab if parts.head is None else parts.head
    is_tied = config.flag("tie_word_embeddings", default=parts.is_tied)
    embedding = 0 if is_tied else s.hidden * s.vocab

    is_even = not cache.n_attention_layers and not cache.sliding_kv_values
    return _assembled(
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
        n_parameters=embedding + parts.positions + head + shared + routed + parts.vectors,
        n_flop_parameters=head + shared + used,
        n_experts=moe.n if moe.layers else 0,
        n_experts_per_token=moe.per_token if moe.layers else 0,
        **asdict(cache),
    )


def _assembled(config: Config, matrices: Matrices, **facts: Any) -> Facts:
    """Return the facts with what all families share: data type and quantization."""
    # Configs of FP8 and MXFP4 checkpoints may have no `dtype`: other weights are bfloat16 then.
    dtype = "bfloat16"
    packed = config.optional("quantization_config")
    method = packed.get("quant_method") if isinstance(packed, dict) else None
    if config.optional("dtype") is not None or method not in ("fp8", "mxfp4"):
        dtype = config.word("dtype")
    if dtype not in DTYPE_BYTES:
        fix = f"use one of {', '.join(DTYPE_BYTES)}"
        raise config.error(f"unknown type {dtype!r}", "dtype", fix)
    if facts["n_heads"] % facts["n_kv_heads"]:
        problem = f"{facts['n_heads']} heads cannot share {facts['n_kv_heads']} KV heads evenly"
        fix = "correct it or num_attention_heads"
        raise config.error(problem, "num_key_value_heads", fix)
    common = {
        "llm_type": config.get("model_type"),
        "dtype": dtype,
        "n_expert_parameters": matrices.experts,
        "n_attention_parameters": matrices.attention,
        "n_mlp_parameters": matrices.mlp + matrices.shared_experts,
    }
    return common | quantization(config, matrices) | facts


def routed_experts(
    config: Config,
    s: Sizes,
    layers: int,
    n: str = "num_experts",
    *,
    per_token: str = "num_experts_per_tok",
    ffn: str = "moe_intermediate_size",
    shared_ffn: int = 0,
) -> Experts:
    """Return the experts of `layers` layers; `n`, `per_token` and `ffn` are the config's fields."""
    count = config.integer(n)
    width = config.integer(ffn)
    return Experts(layers, count, config.integer(per_token), width, shared_ffn, s.hidden * count)


def experts_by(config: Config, s: Sizes, rule: str, step: int | None = None) -> Experts:
    """Return the experts by a family's rule.

    `step` is the default of `decoder_sparse_step`, which some Qwen configs leave out.
    """
    layers = s.layers
    n = "num_experts"
    ffn = "moe_intermediate_size"
    shared = 0
    gate = 0
    match rule:
        case "everywhere":  # Mixtral, GPT-OSS and MiniMax: of the MLP's width, in every layer
            n = "num_local_experts"
            ffn = "intermediate_size"
        case "llama4":  # in every n-th layer, with a shared one
            step = config.integer("interleave_moe_layer_step")
            every_nth = list(range(step - 1, s.layers, step))
            listed = config.listing("moe_layers", int, default=every_nth)
            layers = len(set(listed) & set(range(s.layers)))
            shared = s.ffn
            n = "num_local_experts"
            ffn = "intermediate_size"
        case "step" | "deepseek":  # after a few dense layers, with shared ones
            dense = config.integer("first_k_dense_replace", least=0)
            if dense > s.layers:
                problem = f"{dense} of {s.layers} layers"
                raise config.error(problem, "first_k_dense_replace", "correct one of the two")
            layers -= dense
            if rule == "step":  # Step 3.5 and 3.7 have one
                shared = config.integer("share_expert_dim")
            else:
                n = "n_routed_experts"
                shared = config.integer("n_shared_experts", least=0) * config.integer(ffn)
        case _:  # Qwen: in every n-th layer but the listed ones; Qwen 1.5 has no list
            step = config.integer("decoder_sparse_step", default=step)
            mlps = set(config.listing("mlp_only_layers", int, default=[]))
            layers = sum(i not in mlps and (i + 1) % step == 0 for i in range(s.layers))
            if rule == "qwen2":  # 1.5, 2 and Next have a shared one, behind a gate of its own
                shared = config.integer("shared_expert_intermediate_size")
                gate = s.hidden
    routed = routed_experts(config, s, layers, n, ffn=ffn, shared_ffn=shared)
    return routed._replace(router=routed.router + gate)


def sliding_window(config: Config, layers: int, family: Family) -> CacheFacts:
    """Return the sliding window and how many layers have it; no facts without a window.

    The family's rule counts the layers where the config does not list their types.
    """
    name, kind = family.windows.window_fields
    n_sliding = 0
    match family.windows.window:
        case "":
            return CacheFacts()
        case "all_layers":  # Mistral and its kind: a window that is set holds for all layers
            n_sliding = layers if config.optional("sliding_window") is not None else 0
        case "upper_layers":  # Qwen: from a layer on, and only if it is switched on
            config.ignore("max_window_layers")
            if config.flag("use_sliding_window", default=False):
                n_sliding = max(0, layers - config.integer("max_window_layers", least=0))
        case "every_other":  # Gemma 2 and GPT-OSS: the first layer, the third, and so on
            n_sliding = -(-layers // 2)
        case "all_but_every_nth":  # Gemma 3: every sixth layer sees all tokens
            n_sliding = layers - layers // config.integer("sliding_window_pattern", default=6)
        case "all_but_every_fourth":  # Llama 4: of the others, each sees a chunk
            config.require(no_rope_layer_interval=4)
            has_chunks = config.optional("attention_chunk_size") is not None
            n_sliding = layers - layers // 4 if has_chunks else 0
    if config.optional("layer_types") is not None:
        types = config.by_layer("layer_types", layers, ("full_attention", kind))
        n_sliding = types.count(kind)
    if not n_sliding:
        config.ignore(name)
        return CacheFacts()
    return CacheFacts(sliding_window_tokens=config.integer(name), n_sliding_layers=n_sliding)


def llama(config: Config, family: Family) -> Facts:
    """Return the facts of Llama's kind."""
    if family.qk_norm:
        config.require(use_qk_norm=True, qk_norm_type="per_layer")
    # Layers that predict further tokens are not part of the main model.
    config.ignore("mtp_transformer_layers", "num_nextn_predict_layers")
    s = _llama_sizes(config, family)

    rules = family.biases
    has_bias = rules.reads_attention_bias and config.flag("attention_bias", default=False)
    has_qkv_bias = rules.has_qkv_bias and config.flag("qkv_bias", default=True)
    if rules.has_qkv_bias:
        config.require(attention_bias=True)
    bias = _biases(s, qkv=has_bias or has_qkv_bias, out=has_bias)
    qk_norm = {"": 0, "head": 2, "all": s.heads + s.kv_heads}[family.qk_norm] * s.head_dim
    experts = experts_by(config, s, family.experts) if family.experts else Experts()
    if family.experts and config.flag("use_routing_bias", default=False):
        bias += experts.n
    vectors = s.layers * (family.norms * s.hidden + qk_norm + bias) + s.hidden

    window = sliding_window(config, s.layers, family)
    if family.sizes.dense_ffn:
        s = s._replace(ffn=config.integer(family.sizes.dense_ffn))
    return decoder(config, s, Parts(vectors, family.is_tied, experts=experts), window)


def gpt_oss(config: Config, family: Family) -> Facts:
    """GPT-OSS: biases everywhere, of the router and of each expert too; a sink per head."""
    s = _llama_sizes(config, family)
    experts = experts_by(config, s, "everywhere")
    expert_bias = experts.n * (2 * s.ffn + s.hidden) + experts.n
    in_layer = 2 * s.hidden + _biases(s, qkv=True, out=True) + s.heads + expert_bias
    window = sliding_window(config, s.layers, family)
    return decoder(config, s, Parts(s.layers * in_layer + s.hidden, experts=experts), window)


def _llama_sizes(config: Config, family: Family) -> Sizes:
    rules = family.sizes
    sources: dict[str, int | str] = {}
    if config.optional("head_dim") is None and not rules.has_head_dim and not rules.defaults:
        heads = config.integer("num_attention_heads")
        sources["head_dim"] = _head_dim(config, config.integer("hidden_size"), heads)
    if rules.kv_heads_follow and config.optional("num_key_value_heads") is None:
        sources["kv_heads"] = "num_attention_heads"
    return read_sizes(config, rules.defaults, **sources)


def _gpt_sizes(config: Config, family: Family, **sources: int | str) -> Sizes:
    """Read the sizes of a decoder whose heads share the hidden size.

    `sources` are as of `read_sizes`.
    """
    rules = family.sizes
    names: dict[str, Any] = {**rules.size_names, **sources}
    h = config.integer(names.get("hidden", "hidden_size"))
    heads = config.integer(names.get("heads", "num_attention_heads"))
    ffn = {names.get("ffn", "intermediate_size"): rules.ffn_ratio * h or None}
    kv_heads = {"num_key_value_heads": heads if rules.kv_heads_follow else None}
    same = {"kv_heads": heads, "head_dim": _head_dim(config, h, heads)}
    return read_sizes(config, {**ffn, **kv_heads, **rules.defaults}, **same | names)


def gpt(config: Config, family: Family) -> Facts:
    """Return the facts of GPT's kind."""
    return _gpt(config, family, _gpt_sizes(config, family))


def _gpt(
    config: Config,
    family: Family,
    s: Sizes,
    *,
    positions: int = 0,
    head: int | None = None,
    head_vectors: int = 0,
) -> Facts:
    """Return the facts of GPT's kind.

    `positions` and `head` are as of `Parts`; `head_vectors` are vectors outside of the layers
    beside the final norm.
    """
    rules = family.biases
    in_attention = rules.has_bias and not rules.has_mlp_bias_alone
    bias = _biases(s, qkv=in_attention, out=in_attention, mlp=rules.has_bias)
    vectors = s.layers * (bias + family.norms * 2 * s.hidden)
    vectors += 2 * s.hidden + s.vocab * rules.has_head_bias + head_vectors
    parts = Parts(vectors, family.is_tied, mlp_matrices=2, positions=positions, head=head)
    return decoder(config, s, parts, sliding_window(config, s.layers, family))


def opt(config: Config, family: Family) -> Facts:
    """OPT, which may project its embeddings."""
    s = _gpt_sizes(config, family)
    h = s.hidden
    projected = config.integer("word_embed_proj_dim")
    has_final_norm = config.flag("do_layer_norm_before")
    return _gpt(
        config,
        family,
        s,
        positions=(s.context + 2) * h,  # OPT's learned positions start at 2
        head=s.vocab * projected + (2 * h * projected if projected != h else 0),
        head_vectors=0 if has_final_norm else -2 * h,
    )


def gpt2(config: Config, family: Family) -> Facts:
    """GPT-2, and GPT-BigCode, where all heads may share one K and V."""
    is_shared = config.get("model_type") == "gpt_bigcode" and config.flag("multi_query")
    s = _gpt_sizes(config, family, **({"kv_heads": 1} if is_shared else {}))
    config.require(num_key_value_heads=s.kv_heads)  # newer configs write it out
    return _gpt(config, family, s, positions=s.context * s.hidden)


def bloom(config: Config, family: Family) -> Facts:
    """BLOOM, with a norm of the embedding and an MLP of one width."""
    hidden = config.integer("hidden_size")
    config.require(n_inner=4 * hidden)
    return _gpt(config, family, _gpt_sizes(config, family), head_vectors=2 * hidden)


def falcon(config: Config, family: Family) -> Facts:
    """Falcon, of the old and the new architecture."""
    sources: dict[str, int | str] = {"kv_heads": 1} if config.flag("multi_query") else {}
    if config.flag("new_decoder_architecture"):
        sources = {"kv_heads": "num_kv_heads"}
        norms = config.integer("num_ln_in_parallel_attn", 2)
    else:
        config.ignore("num_kv_heads")  # has a meaning in the new architecture only
        # Attention and MLP side by side share one norm.
        norms = 1 if config.flag("parallel_attn") else 2
    family = family.with_row({"norms": norms, "has_bias": config.flag("bias")})
    return _gpt(config, family, _gpt_sizes(config, family, **sources))


def mpt(config: Config, family: Family) -> Facts:
    """MPT, without biases; ALiBi has no table of positions."""
    if not config.get("no_bias"):
        fix = "set no_bias to true, as every published MPT has it"
        raise config.error("biases are not supported", "no_bias", fix)
    config.section("attn_config").require(attn_type="multihead_attention", qk_ln=False)
    ffn = config.integer("expansion_ratio") * config.integer("d_model")
    s = _gpt_sizes(config, family, ffn=ffn)
    parts = Parts((2 * s.layers + 1) * s.hidden, is_tied=True, mlp_matrices=2)
    return decoder(config, s, parts)


def t5(config: Config, _: Family) -> Facts:
    """T5 and mT5: an encoder beside the decoder."""
    h, ffn, head_dim = config.integers("d_model", "d_ff", "d_kv")
    layers, heads = config.integers("num_layers", "num_heads")
    vocab, buckets = config.integers("vocab_size", "relative_attention_num_buckets")
    decoder_layers = config.integer("num_decoder_layers", default=layers)
    # The first T5 configs have no `feed_forward_proj`; the default differs by family.
    original = {"t5": "relu", "mt5": "gated-gelu"}[config.get("model_type")]
    kind = config.optional("feed_forward_proj", original)
    n_matrices = {"relu": 2, "gelu": 2, "gated-gelu": 3, "gated-silu": 3, "gated-relu": 3}
    if kind not in [*n_matrices]:
        fix = f"use {', '.join(n_matrices)}"
        raise config.error(f"unknown MLP {kind!r}", "feed_forward_proj", fix)
    mlp = n_matrices[kind] * h * ffn
    product = h * heads * head_dim  # `d_kv` is free: the heads need not add up to the hidden size
    matrices = vocab * h + decoder_layers * (6 * product + mlp)
    encoder = layers * (4 * product + mlp) + decoder_layers * 2 * product
    # RMS norms before each sublayer and after each stack; a table of relative positions each.
    vectors = layers * 2 * h + decoder_layers * 3 * h + 2 * h + 2 * buckets * heads
    lookup = 0 if config.flag("tie_word_embeddings", default=True) else vocab * h
    return _assembled(
        config,
        Matrices((4 * layers + 8 * decoder_layers) * product, (layers + decoder_layers) * mlp),
        n_parameters=lookup + matrices + encoder + vectors,
        n_flop_parameters=matrices,
        is_encoder_decoder=True,
        n_encoder_layers=layers,
        n_encoder_flop_parameters=encoder,
        n_layers=decoder_layers,
        hidden_size=h,
        ffn_size=ffn,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=head_dim,
        vocab_size=vocab,
        # Relative positions: far tokens share the last bucket. `n_positions`, which half of the
        # configs lack, is the length in training; Flan-T5 serves longer inputs than its 512.
        context_tokens=UNBOUNDED_TOKENS,
    )

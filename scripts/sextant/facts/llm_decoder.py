"""Counts a decoder's parameters and what it keeps of a request, from the fields of its config.

`read_sizes` finds the sizes, `llm_layers` the kinds of layers, `llm_mixers` and `llm_experts` count
what is in a layer; this file adds up: the fields of `LLM` come out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sextant.facts.llm_config import DTYPE_BYTES, Config
from sextant.facts.llm_experts import Experts, layers_with_experts, no_experts, read_experts
from sextant.facts.llm_families import Family
from sextant.facts.llm_launches import launches_of
from sextant.facts.llm_layers import Layer, read_layers
from sextant.facts.llm_mixers import Mixer, mixer_of, read_biases, with_indexer
from sextant.facts.llm_modules import PARTS, Matrix
from sextant.facts.llm_quantization import quantization
from sextant.facts.llm_sizes import Sizes, read_sizes, with_own_sizes

Facts = dict[str, Any]


@dataclass
class Parameters:
    """Parameters that are counted so far."""

    matrices: list[Matrix] = field(default_factory=list)
    vectors: int = 0  # norms, biases, convolutions
    lookups: int = 0  # tables that multiply nothing
    reused: int = 0  # matrices of an earlier layer that a token is multiplied with again


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


def decoder(config: Config, family: Family) -> Facts:
    """Return the facts of a decoder-only LLM.

    Raises:
        InputError: a size is missing, or attention, state or experts cannot be told.
    """
    if family.refused:
        fix = "give --parameters, --layers and --kv-bytes-per-token in place of the config"
        raise config.error(family.refused, "model_type", fix)
    if config.optional("is_encoder_decoder") is True:
        fix = "only t5 and mt5 are supported among encoder-decoders"
        raise config.error("an encoder-decoder", "is_encoder_decoder", fix)
    config.require(add_cross_attention=False)
    layers = _with_experts(config, family, read_layers(config, family))
    s = read_sizes(config, family, layers)
    layers = with_own_sizes(config, s, layers)
    experts = no_experts(config)
    if any(layer.has_experts for layer in layers):
        experts = read_experts(config, family, s.hidden, s.ffn)
        if not experts.n:
            layers = [layer._replace(has_mlp=True, has_experts=False) for layer in layers]
    mixers = _all_mixers(config, family, s, layers)

    total = Parameters()
    biases = read_biases(config, family)
    for i, layer in enumerate(layers):
        _add_layer(total, family, s, i, layer, mixers[i])
        _add_mlp(total, family, s, i, layer, biases.mlp)
        if layer.has_experts:
            _add_experts(total, family, s, i, experts)
    _add_inputs_per_layer(config, total, s)
    add_ends(config, family, total, s)
    return assembled(config, total, cache_facts(config, mixers, s), s, experts)


def _with_experts(config: Config, family: Family, layers: list[Layer]) -> list[Layer]:
    """Return the layers, with experts where the config has them."""
    n = config.optional("num_experts")
    is_off = False in (config.optional("enable_moe_block"), config.optional("is_moe"))
    is_dense = not n or n == 1 or is_off
    if is_dense or any(layer.has_experts for layer in layers):
        return layers
    repeats = family.layers.repeats
    has_experts = layers_with_experts(config, len(layers) // repeats)
    has_mlp_too = bool(family.ffn.beside_experts)
    return [
        layer._replace(
            has_experts=i % repeats == 0 and has_experts[i // repeats],
            has_mlp=has_mlp_too or not has_experts[i // repeats],
        )
        for i, layer in enumerate(layers)
    ]


def _all_mixers(
    config: Config, family: Family, s: Sizes, layers: Sequence[Layer]
) -> list[list[Mixer]]:
    """Return the mixers of each layer. Dozens of layers are alike, and are read once."""
    may_differ = config.optional("index_n_heads") is not None  # an index is in some layers only
    mixers: list[list[Mixer]] = []
    for i, layer in enumerate(layers):
        before = () if may_differ or layer.own_fields else range(i)
        alike = next((k for k in before if layers[k] == layer), None)
        made = _mixers_of(config, family, s, i, layer) if alike is None else mixers[alike]
        mixers.append(made)
    return mixers


def _mixers_of(config: Config, family: Family, s: Sizes, i: int, layer: Layer) -> list[Mixer]:
    config = config.with_values(layer.own_fields) if layer.own_fields else config
    mixers = [mixer_of(config, family, s, layer, kind) for kind in layer.mixers]
    if config.optional("index_n_heads") is None:
        return mixers
    kinds = config.by_layer(
        "indexer_types", s.layers, ("full", "shared"), default=["full"] * s.layers
    )
    has_indexer = kinds[i] == "full"
    return [
        with_indexer(config, s, mixer)
        if mixer.latent and has_indexer and not mixer.window_tokens
        else mixer
        for mixer in mixers
    ]


def _add_layer(
    total: Parameters, family: Family, s: Sizes, i: int, layer: Layer, mixers: Sequence[Mixer]
) -> None:
    """Add what mixes tokens in a layer, and its norms."""
    for mixer in mixers:
        total.vectors += mixer.vectors
        total.matrices += [Matrix(i, "attention", name, n) for name, n in mixer.matrices.items()]
    rules = family.layers
    has_both = bool(mixers) and (layer.has_mlp or layer.has_experts)
    has_one = bool(mixers) or layer.has_mlp or layer.has_experts
    norms = rules.norms if has_both else rules.norms // 2 if has_one else 0
    total.vectors += norms * rules.norm_vectors * s.hidden


_MLP_PIECES = ("down", "up", "gate")


def _add_mlp(
    total: Parameters, family: Family, s: Sizes, i: int, layer: Layer, has_bias: bool
) -> None:
    if not layer.has_mlp:
        return
    width = layer.ffn or s.ffn
    n_matrices = family.ffn.mlp_matrices
    total.matrices += [
        Matrix(i, "mlp", piece, s.hidden * width) for piece in _MLP_PIECES[:n_matrices]
    ]
    total.vectors += has_bias * ((n_matrices - 1) * width + s.hidden)


def _add_experts(total: Parameters, family: Family, s: Sizes, i: int, experts: Experts) -> None:
    total.vectors += experts.vectors
    total.matrices.append(Matrix(i, "router", "", experts.router))
    for piece in _MLP_PIECES[: family.ffn.mlp_matrices]:
        if experts.shared_ffn:
            total.matrices.append(Matrix(i, "shared_experts", piece, s.hidden * experts.shared_ffn))
        n = experts.n * experts.width * experts.ffn
        total.matrices.append(Matrix(i, "experts", piece, n))


def _add_inputs_per_layer(config: Config, total: Parameters, s: Sizes) -> None:
    """Add embeddings that each layer has of its own, and further streams (Gemma 3n and 4)."""
    width = config.integer("hidden_size_per_layer_input", 0, least=0)
    vocab = config.integer("vocab_size_per_layer_input", s.vocab)
    if width:
        total.lookups += vocab * s.layers * width
        n = s.hidden * s.layers * width + 2 * s.layers * s.hidden * width
        total.matrices.append(Matrix(-1, "other", "inputs_per_layer", n))
        total.vectors += s.layers * s.hidden + width
    rank = config.integer("laurel_rank", 0, least=0)
    streams = config.integer("altup_num_inputs", 0, least=0)
    if rank:
        total.matrices.append(Matrix(-1, "other", "laurel", s.layers * 2 * s.hidden * rank))
        total.vectors += s.layers * s.hidden
    if streams:
        mixing = s.layers * (s.hidden * streams + streams**2 + streams**3)
        n = 2 * (streams - 1) * s.hidden**2 + mixing
        total.matrices.append(Matrix(-1, "other", "streams", n))
        total.vectors += s.layers * 2 * s.hidden


def add_ends(config: Config, family: Family, total: Parameters, s: Sizes) -> None:
    """Add embedding, positions, the last norm and the head."""
    rules = family.ends
    width = config.integer(rules.embedding_field) if rules.embedding_field else s.hidden
    projections = 2 * s.hidden * width if width != s.hidden else 0
    total.matrices.append(Matrix(-1, "head", "", s.vocab * width + projections))
    if not config.flag("tie_word_embeddings", default=rules.is_tied):
        total.lookups += s.vocab * width
    total.lookups += rules.extra_rows * width
    if rules.positions is not None:
        total.lookups += (s.context + rules.positions) * s.hidden
    norms = rules.has_final_norm + rules.embedding_norm
    total.vectors += norms * family.layers.norm_vectors * s.hidden
    has_bias = rules.head_bias or config.optional("lm_head_bias") is True
    total.vectors += s.vocab * has_bias


def cache_facts(config: Config, mixers: Sequence[Sequence[Mixer]], s: Sizes) -> CacheFacts:
    """Return what a request keeps, summed over all layers; InputError: nothing has attention."""
    all_mixers = [mixer for of_layer in mixers for mixer in of_layer]
    attention = [mixer for mixer in all_mixers if mixer.is_attention]
    if not attention:
        names = ("hybrid_override_pattern", "layers_block_type", "layer_types", "model_type")
        field_name = next(name for name in names if name in config.values or name == names[-1])
        problem = "no layer has attention: a request keeps a state alone"
        raise config.error(problem, field_name, "only hybrids are supported")
    windowed = [mixer for mixer in attention if mixer.window_tokens]
    latent = max(mixer.latent for mixer in attention)
    usual = latent or 2 * s.kv_heads * s.head_dim
    is_alike = all(mixer.kv_values == usual for mixer in attention)
    kv_values = sum(mixer.kv_values for mixer in attention)
    of_windows = sum(mixer.kv_values for mixer in windowed)
    return CacheFacts(
        kv_latent_size=latent,
        kv_values=0.0 if is_alike else kv_values,
        sliding_kv_values=0.0 if is_alike else of_windows,
        sliding_window_tokens=max((mixer.window_tokens for mixer in windowed), default=0),
        n_sliding_layers=len(windowed),
        n_attention_layers=len(attention) if len(attention) < s.layers else 0,
        state_bytes_per_request=sum(mixer.state_bytes for mixer in all_mixers),
    )


def assembled(
    config: Config, total: Parameters, cache: CacheFacts, s: Sizes, experts: Experts
) -> Facts:
    """Return the fields of `LLM` for a decoder."""
    by_part = sums_by_part(total.matrices)
    n_matrices = sum(by_part.values())
    routed = by_part["experts"]
    used = routed * experts.per_token // (experts.n or 1)
    facts = common_facts(config, total.matrices)
    return (
        facts
        | asdict(cache)
        | {
            "n_layers": s.layers,
            "hidden_size": s.hidden,
            "ffn_size": experts.ffn or s.ffn,
            "n_heads": s.heads,
            "n_kv_heads": s.kv_heads,
            "head_dim": s.head_dim,
            "vocab_size": s.vocab,
            "context_tokens": s.context,
            "n_parameters": n_matrices + total.vectors + total.lookups,
            "n_flop_parameters": n_matrices - routed + used + total.reused,
            "n_experts": experts.n,
            "n_experts_per_token": experts.per_token,
        }
    )


def sums_by_part(matrices: Sequence[Matrix]) -> dict[str, int]:
    """Return the parameters of each part."""
    sums = dict.fromkeys((*PARTS, "router", "other", "head"), 0)
    for matrix in matrices:
        sums[matrix.part] += matrix.n
    return sums


def common_facts(config: Config, matrices: Sequence[Matrix]) -> Facts:
    """Return the fields of `LLM` that all families share: data type, quantization, parts."""
    by_part = sums_by_part(matrices)
    launches = launches_of(matrices)
    return {
        "n_products": launches.products,
        "n_small_kernels": launches.small,
        "llm_type": config.optional("model_type") or (*config.outer_types, "unknown")[0],
        "dtype": _dtype(config),
        "n_expert_parameters": by_part["experts"],
        "n_attention_parameters": by_part["attention"],
        "n_mlp_parameters": by_part["mlp"] + by_part["shared_experts"],
    } | quantization(config, matrices)


def _dtype(config: Config) -> str:
    """Return the data type of the weights that are not quantized."""
    stated = config.optional("dtype")
    packed = config.optional("quantization_config")
    method = packed.get("quant_method") if isinstance(packed, dict) else None
    if stated is None or stated == "auto":
        # Configs of FP8 and MXFP4 checkpoints may have no `dtype`: other weights are bfloat16 then.
        if method not in ("fp8", "mxfp4"):
            config.assume("No field has the data type: it is taken as bfloat16.")
        return "bfloat16"
    dtype = config.word("dtype").removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        fix = f"use one of {', '.join(DTYPE_BYTES)}"
        raise config.error(f"unknown type {dtype!r}", "dtype", fix)
    return dtype

"""The facts of an LLM: its shapes, and the bytes and products that follow from them."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
# NVFP4: 16 numbers share a scale of 8 bits.
_KV_DTYPE_BYTES = DTYPE_BYTES | {"fp8": 1, "int8": 1, "nvfp4": 9 / 16}
UNBOUNDED_TOKENS = 2**31 - 1
"""The context of an LLM whose positions set no limit."""


@dataclass(frozen=True)
class LLM:
    """An LLM's architecture. Sizes are counts; nothing here depends on where it runs.

    Bounds are checked where facts are read from a file of a cell, not by `LLM(…)`.

    The fields with a default describe a dense, unquantized decoder with ordinary attention.
    """

    llm_type: str
    """`model_type` of the config, e.g. `opt`; of its text part if it has others."""
    n_layers: PositiveInt
    """Layers that generate: those of the decoder."""
    hidden_size: PositiveInt
    ffn_size: PositiveInt
    """Width of a layer's MLP; in a mixture of experts, of one routed expert."""
    n_heads: PositiveInt
    n_kv_heads: PositiveInt
    head_dim: PositiveInt
    """Numbers in a head's query and key."""
    vocab_size: PositiveInt
    context_tokens: PositiveInt
    """Longest sequence, input plus output; `UNBOUNDED_TOKENS` if there is no limit."""
    dtype: Annotated[str, Field(pattern=f"^({'|'.join(DTYPE_BYTES)})$")]
    n_parameters: PositiveInt
    """All parameters, embeddings and every expert included; tied matrices count once."""
    n_flop_parameters: PositiveInt
    """Parameters that a token is multiplied with on its way through the decoder.

    Decoder-only: every token, of input or output; all matrices but the look-up tables, and of
    the routed experts as many as a token uses.
    Encoder-decoder: every output token; the decoder's matrices, of cross-attention Q and O.
    """
    is_encoder_decoder: bool = False
    n_encoder_layers: NonNegativeInt = 0
    n_encoder_flop_parameters: NonNegativeInt = 0
    """Parameters that an input token of an encoder-decoder is multiplied with, once.

    The encoder's matrices, and K and V of the decoder's cross-attention; 0 if decoder-only.
    """
    n_experts: NonNegativeInt = 0
    """Routed experts of a layer; 0 if dense. Shared experts, used by every token, do not count."""
    n_experts_per_token: NonNegativeInt = 0
    """Routed experts of a layer that one token uses."""
    n_expert_parameters: NonNegativeInt = 0
    """Matrices of all routed experts of all layers."""
    n_attention_parameters: NonNegativeInt = 0
    """Matrices of the attention of all layers."""
    n_mlp_parameters: NonNegativeInt = 0
    """Matrices of the MLPs of all layers, shared experts included, routed experts not."""
    kv_latent_size: NonNegativeInt = 0
    """Numbers in the one vector that multi-head latent attention (MLA) keeps per token and layer.

    0 for attention that keeps K and V of every KV head.
    """
    kv_dtype: Annotated[str, Field(pattern=f"^({'|'.join(_KV_DTYPE_BYTES)})?$")] = ""
    """Data type of the KV cache (float32, float16, bfloat16, fp8, int8, nvfp4); empty for `dtype`.

    The server's choice, not the config's: `dataclasses.replace` sets it.
    """
    weight_bits: NonNegativeFloat = 0.0
    """Bits of a quantized weight, its share of scales and zero points included; 0: unquantized."""
    n_quantized_parameters: NonNegativeInt = 0
    """Quantized parameters; the others are stored as `dtype`."""
    n_quantized_expert_parameters: NonNegativeInt = 0
    """Of these, parameters of routed experts."""
    weight_format: str = ""
    """Type of the quantized weights, one of `load.QUANTIZED`; empty: unquantized."""
    expert_format: str = ""
    """Type of the routed experts' quantized weights, where it is not `weight_format`."""
    expert_bits: NonNegativeFloat = 0.0
    """Bits of the routed experts' quantized weights, where they are not `weight_bits`."""
    is_weight_only: bool = False
    """Whether quantized weights are multiplied as 16-bit numbers (GPTQ, AWQ, INT4)."""
    sliding_window_tokens: NonNegativeInt = 0
    """Tokens that a layer with sliding-window attention looks back on; 0 if no layer has it."""
    n_sliding_layers: NonNegativeInt = 0
    n_attention_layers: NonNegativeInt = 0
    """Layers with attention, of any kind; 0: all. The others keep a state of fixed size."""
    state_bytes_per_request: NonNegativeInt = 0
    """Bytes of the states of linear attention and Mamba layers, whatever a request's length."""
    kv_values: NonNegativeFloat = 0.0
    """Numbers that one token leaves in the KV cache of all layers; 0: all layers are alike."""
    sliding_kv_values: NonNegativeFloat = 0.0
    """Of `kv_values`, those of the layers with a sliding window."""

    @property
    def attention(self) -> str:
        """The kind of attention: MHA, GQA, MQA (grouped, one KV head) or MLA (a latent vector)."""
        if self.kv_latent_size:
            return "MLA"
        if self.n_kv_heads == self.n_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else "GQA"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: quantized ones, and the others at the data type."""
        return self.dense_weight_bytes + self.expert_weight_bytes

    @property
    def dense_weight_bytes(self) -> int:
        """Bytes of all weights but those of the routed experts; embeddings are among them."""
        return self._dense_bytes(self.n_parameters - self.n_expert_parameters)

    @property
    def expert_weight_bytes(self) -> int:
        """Bytes of all routed experts of all layers."""
        n, bits = self.n_quantized_expert_parameters, self.expert_bits or self.weight_bits
        return (self.n_expert_parameters - n) * DTYPE_BYTES[self.dtype] + round(n * bits / 8)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of the decoder's matrices that every step reads: routed experts do not count.

        Look-up tables do not count either. Of an encoder-decoder's quantized weights the decoder
        has its share of the matrices.
        """
        dense = self.n_flop_parameters - self.n_active_expert_parameters
        share = dense / ((dense + self.n_encoder_flop_parameters) or 1)
        return self._dense_bytes(dense, share)

    @property
    def attention_weight_bytes(self) -> float:
        """Of `step_weight_bytes`, those of attention."""
        dense = max(self.n_flop_parameters - self.n_active_expert_parameters, 1)
        return min(self.n_attention_parameters / dense, 1.0) * self.step_weight_bytes

    def _dense_bytes(self, n_parameters: int, share: float = 1.0) -> int:
        n = share * (self.n_quantized_parameters - self.n_quantized_expert_parameters)
        return round((n_parameters - n) * DTYPE_BYTES[self.dtype] + n * self.weight_bits / 8)

    @property
    def n_active_expert_parameters(self) -> int:
        """Parameters of the routed experts that one token is multiplied with."""
        return self.n_expert_parameters * self.n_experts_per_token // (self.n_experts or 1)

    @property
    def flop_parameters(self) -> dict[str, float]:
        """`n_flop_parameters` by the precision (`load.PRECISIONS`) of their products."""
        dense: float = self.n_quantized_parameters - self.n_quantized_expert_parameters
        active = self.n_active_expert_parameters * (
            self.n_quantized_expert_parameters / (self.n_expert_parameters or 1)
        )
        decoder = self.n_flop_parameters - self.n_active_expert_parameters
        dense *= decoder / ((decoder + self.n_encoder_flop_parameters) or 1)
        plain, packed = DTYPE_PRECISION[self.dtype], self.weight_format
        if self.is_weight_only or not packed:
            return {plain: float(self.n_flop_parameters)}
        by_precision = {plain: self.n_flop_parameters - dense - active, packed: float(dense)}
        experts = self.expert_format or packed
        by_precision[experts] = by_precision.get(experts, 0.0) + active
        return {name: n for name, n in by_precision.items() if n}

    @property
    def kv_values_per_token_layer(self) -> int:
        """Numbers that one token leaves in the KV cache of one layer, where layers are alike."""
        return self.kv_latent_size or 2 * self.n_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the KV cache that one token, of input or output, takes over all layers.

        In an encoder-decoder an output token has them in the decoder's self-attention, an input
        token in its cross-attention, which is of the same size.
        """
        return round(self._kv_values * self._kv_number_bytes)

    @property
    def sliding_kv_bytes_per_token(self) -> float:
        """Of `kv_bytes_per_token`, those of layers that keep `sliding_window_tokens` tokens."""
        alike = self.n_sliding_layers * self.kv_values_per_token_layer
        return (self.sliding_kv_values if self.kv_values else alike) * self._kv_number_bytes

    @property
    def _kv_values(self) -> float:
        layers = self.n_attention_layers or self.n_layers
        return self.kv_values or layers * self.kv_values_per_token_layer

    @property
    def _kv_number_bytes(self) -> float:
        return _KV_DTYPE_BYTES[self.kv_dtype or self.dtype]

"""Facts of an LLM from the few sizes that its user states, where no `config.json` is known."""

import math
from dataclasses import dataclass
from typing import Any

from sextant.base.errors import InputError
from sextant.facts.llm.facts import DTYPE_BYTES, LLM, UNBOUNDED_TOKENS

_HEAD_DIM = 128
_EXPERTS, _EXPERTS_PER_TOKEN = 128, 8
"""Of a mixture of experts: what most of today's have."""
_VOCABULARY = 128_000
_HIDDEN_SQUARES = 12
"""A layer has about 12 · hidden size² parameters: 4 in attention, 8 in the MLP."""
_GIB = 2**30
_FORMATS = ((6.0, "int4"), (12.0, "fp8"))
"""Up to how many bits a weight is taken to have this type; above, it is not quantized."""


@dataclass(frozen=True)
class GivenSizes:
    """What the user says of an LLM; the rest is that of a usual decoder of these sizes."""

    n_parameters: float
    n_layers: int
    kv_bytes_per_token: float
    """Over all layers, of a KV cache of 16-bit numbers."""
    n_active_parameters: float | None = None
    """Parameters that a token is multiplied with; all if None."""
    weight_gib: float | None = None
    """2 bytes a parameter if None."""

    def __post_init__(self) -> None:
        """Refuse sizes that no LLM has."""
        for name, value in vars(self).items():
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{value:g} is not a size", field=name, fix="give one above 0")
        if (self.n_active_parameters or 0) > self.n_parameters:
            problem = f"{self.n_active_parameters:g} of {self.n_parameters:g} parameters are active"
            raise InputError(problem, field="n_active_parameters", fix="give no more than all")

    def llm(self) -> LLM:
        """Return the facts.

        Where fewer parameters are active than there are, the others are experts: of A active and P
        in all, experts are (P - A) / (1 - k / n), of which a token uses k of n.
        """
        active = self.n_active_parameters or self.n_parameters
        is_moe = active < self.n_parameters
        idle = self.n_parameters - active
        experts = min(idle / (1 - _EXPERTS_PER_TOKEN / _EXPERTS), self.n_parameters)
        dense = round(self.n_parameters - experts)
        hidden = math.sqrt(active / self.n_layers / _HIDDEN_SQUARES)
        n_heads = max(1, round(hidden / _HEAD_DIM))
        kv_values = self.kv_bytes_per_token / DTYPE_BYTES["bfloat16"]
        kv_heads = round(kv_values / self.n_layers / 2 / _HEAD_DIM)
        return LLM(
            llm_type="given",
            n_layers=self.n_layers,
            hidden_size=n_heads * _HEAD_DIM,
            ffn_size=4 * n_heads * _HEAD_DIM,
            n_heads=n_heads,
            n_kv_heads=min(max(kv_heads, 1), n_heads),
            head_dim=_HEAD_DIM,
            vocab_size=_VOCABULARY,
            context_tokens=UNBOUNDED_TOKENS,
            dtype="bfloat16",
            n_parameters=round(self.n_parameters),
            n_flop_parameters=round(active),
            n_experts=_EXPERTS * is_moe,
            n_experts_per_token=_EXPERTS_PER_TOKEN * is_moe,
            n_expert_parameters=round(experts),
            n_attention_parameters=dense // 3,
            n_mlp_parameters=dense - dense // 3,
            kv_values=kv_values,
            **self._quantization(experts),
        )

    def said(self) -> str:
        """Return what an answer says of where its facts come from."""
        given = ", ".join(f"{k} {v:g}" for k, v in vars(self).items() if v is not None)
        return f"The LLM is as the user gave it ({given}); all else is that of a usual decoder."

    def _quantization(self, experts: float) -> dict[str, Any]:
        if self.weight_gib is None:
            return {}
        bits = 8 * self.weight_gib * _GIB / self.n_parameters
        packed = next((name for most, name in _FORMATS if bits <= most), None)
        if packed is None:
            return {}
        return {
            "weight_bits": bits,
            "n_quantized_parameters": round(self.n_parameters),
            "n_quantized_expert_parameters": round(experts),
            "weight_format": packed,
            "is_weight_only": packed == "int4",
        }

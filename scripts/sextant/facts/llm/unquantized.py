"""Which matrices of a quantized checkpoint keep their data type.

By convention embeddings, output head, routers, norms and biases do. A checkpoint may name further
modules: attention, shared experts and MLPs, of all layers or of some, and whole layers.
"""

import re
from typing import NamedTuple

from sextant.facts.llm.config import Section

# Parts that are never counted as quantized: naming them as exceptions changes nothing.
_NEVER_QUANTIZED = re.compile(
    r"(^|[.*])head$|lm_head|embed|norm|vision|visual|multi_?modal|mm_projector|mtp|conv1d"
    r"|e_score_correction_bias|indexers_proj|eh_proj|in_proj_(ba|[ab])$"
    r"|(^|[.*])(gate|router|shared_expert_gate)$"
)
# Modules that a checkpoint may leave unquantized, by field of `Matrices`.
_PARTS = {
    "attention": re.compile(r"(^|[.*])(self_|linear_)?attn(\.[qkvo]_proj)?$"),
    "shared_experts": re.compile(r"(^|[.*])shared_experts?$"),
    "mlp": re.compile(
        r"(^|[.*])(mlp|feed_forward)(\.(gate|up|down)_proj|\.\(gate\|up\|gate_up\|down\)_proj)?$"
    ),
}
_WHOLE_LAYER = re.compile(r"(^|[.*])layers\.\d+$")
_LAYER = re.compile(r"layers\.(\d+)(\.|$)")
_PIECE = re.compile(r"\.([a-z]+)_proj$")
_PIECES = {"attention": 4, "shared_experts": 3, "mlp": 3}
_EXCEPTIONS = ("modules_to_not_convert", "ignore", "llm_int8_skip_modules", "ignored_layers")


class Matrices(NamedTuple):
    """Parameters of the layers' matrices, the only ones that are ever quantized."""

    attention: int
    mlp: int
    """MLPs of the layers without experts, or beside them."""
    shared_experts: int = 0
    experts: int = 0
    """Routed experts."""
    n_layers: int = 0
    n_dense_layers: int = 0
    """The layers without experts, which come first where experts do not alternate with them."""

    is_even: bool = True
    """Whether attention, or what takes its place, has the same size in all layers."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.attention + self.mlp + self.shared_experts + self.experts


def without_exceptions(inner: Section, matrices: Matrices) -> Matrices:
    """Return the matrices less those that are left unquantized; refuse unknown exceptions."""
    kept: dict[str, dict[str, set[str]]] = {part: {} for part in _PARTS}
    for field in _EXCEPTIONS:
        for name in inner.listing(field, str, default=[]):
            module = name.removeprefix("re:").replace("\\", "").rstrip(".*$")
            if _NEVER_QUANTIZED.search(module) or _is_beyond(module, matrices):
                continue
            layer, piece = _LAYER.search(module), _PIECE.search(module)
            for part in _parts_of(inner, field, module, matrices):
                pieces = kept[part].setdefault(layer[1] if layer else "", set())
                pieces.add(piece[1] if piece else "")
    n_sparse = matrices.n_layers - matrices.n_dense_layers
    n_mlps = matrices.n_dense_layers or matrices.n_layers
    layers = {"attention": matrices.n_layers, "shared_experts": n_sparse, "mlp": n_mlps}
    left = {part: 1 - _share(inner, part, pieces, layers[part]) for part, pieces in kept.items()}
    if not matrices.is_even and 0 < left["attention"] < 1:
        fix = "leave the attention of all layers unquantized, or none of it"
        raise inner.error("layers of different sizes are left unquantized", "ignore", fix)
    return matrices._replace(
        **{part: round(share * getattr(matrices, part)) for part, share in left.items()}
    )


def _share(inner: Section, part: str, kept: dict[str, set[str]], n_layers: int) -> float:
    """Return the share of a part that is left unquantized: by layer ("": all) what is named."""
    shares = {
        layer: 1.0 if "" in pieces else len(pieces) / _PIECES[part]
        for layer, pieces in kept.items()
    }
    # Q, K, V and output differ in size; the matrices of an MLP do not.
    if part == "attention" and any(share % 1 for share in shares.values()):
        fix = "leave all of a layer's attention unquantized, or none of it"
        raise inner.error("parts of attention are left unquantized", "ignore", fix)
    of_all = shares.pop("", 0.0)
    return min(1.0, max(of_all, sum(shares.values()) / (n_layers or 1)))


def _is_beyond(module: str, matrices: Matrices) -> bool:
    """Return whether a module's layer is none of the main model's, but predicts further tokens."""
    layer = _LAYER.search(module)
    return layer is not None and int(layer[1]) >= matrices.n_layers


def _parts_of(inner: Section, field: str, module: str, matrices: Matrices) -> list[str]:
    parts = [part for part, pattern in _PARTS.items() if pattern.search(module)]
    layer = _LAYER.search(module)
    if layer and _WHOLE_LAYER.search(module) and int(layer[1]) < matrices.n_dense_layers:
        parts = ["attention", "mlp"]
    # In a mixture of experts `mlp` may mean all experts as well.
    is_unclear = module.endswith(("mlp", "feed_forward")) and matrices.experts and not matrices.mlp
    if not parts or is_unclear:
        fix = "quantize all matrices of the layers, or add the exception to sextant/facts/llm/"
        raise inner.error(f"{module!r} is left unquantized: cannot be sized", field, fix)
    return parts

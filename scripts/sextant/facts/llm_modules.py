"""What a module's name in a quantization config means: which matrices of an LLM it has.

Names differ by tool and family (`model.layers.0.mlp`, `re:.*self_attn.q_proj$`, `shared_experts`):
a name is read as a layer, a part (attention, MLP, experts) and pieces of it.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

PARTS = ("attention", "mlp", "shared_experts", "experts")
"""Parts of the layers whose matrices are quantized by convention."""


class Matrix(NamedTuple):
    """A matrix of a layer, or what experts have of one kind."""

    layer: int  # -1: of no layer
    part: str  # one of `PARTS`, `router`, `head` or `other`
    piece: str  # `q`, `k`, `v`, `o`, `gate`, `up`, `down` …
    n: int  # parameters


# Parts that are never counted as quantized: naming them as exceptions changes nothing.
_NEVER_QUANTIZED = re.compile(
    r"embed|wte|wpe|norm|vision|visual|image|audio|multi_?modal|mm_projector|merger|modality|mtp"
    r"|conv1d|e_score_correction_bias|indexers_proj|eh_proj|in_proj_(ba|[ab])$|connector|aligner"
    r"|(^|[.*])(gate|router|shared_expert_gate|classifier|bias|sinks?)$|(^|[.*])router"
    r"|block_sparse_moe\.gate$|patch"
)
_HEAD = re.compile(r"(^|[.*])(lm_head|head|output_layer|embed_out)$")
_PART_NAMES = (
    ("shared_experts", re.compile(r"shared_(experts?|mlp)|shared_head")),
    ("experts", re.compile(r"(^|[.*_])experts?([.*(]|$)")),
    (
        "attention",
        re.compile(r"attn|attention|mixer|mamba|(^|[.*])(ssm|delta)|indexer|short_?conv"),
    ),
    ("mlp", re.compile(r"mlp|feed_forward|ffn|block_sparse_moe|(^|[.*])moe([.*]|$)")),
)
_LAYERS = re.compile(r"(?:^|[.*\\])(?:layers|blocks|h|block)\\?\.")
_MOST_LAYERS = 1000
_PIECES = {
    **{name: (name,) for name in ("q", "k", "v", "o", "g", "gate", "up", "down")},
    **{"wq": ("q",), "wk": ("k",), "wv": ("v",), "wo": ("o",)},
    **{"qkv": ("q", "k", "v", "qkv"), "query_key_value": ("q", "k", "v")},
    **{"wqkv": ("q", "k", "v"), "c_attn": ("q", "k", "v"), "in_proj_qkv": ("qkv",)},
    **{"out": ("o", "out"), "dense": ("o",), "in": ("in",), "in_proj_z": ("z",)},
    **{"in_proj_qkvz": ("qkv", "z"), "dt": ("dt",), "x": ("x",)},
    **{"q_a": ("q_a",), "q_b": ("q_b", "wq_b"), "kv_a": ("kv_a",), "kv_b": ("kv_b",)},
    **{"kv_a_proj_with_mqa": ("kv_a",), "fused_qkv_a": ("q_a", "kv_a")},
    **{"fused_wqa_wkv": ("wqa_wkv",), "wq_b": ("wq_b",), "wo_a": ("wo_a",), "wo_b": ("wo_b",)},
    **{"wq_a": ("wqa_wkv",), "wkv": ("wqa_wkv",), "indexer": ("indexer",)},
    **{"gate_up": ("gate", "up"), "up_gate": ("gate", "up"), "w13": ("gate", "up")},
    **{"w1": ("gate",), "w2": ("down",), "w3": ("up",), "fc1": ("up",), "fc2": ("down",)},
    **{"c_fc": ("up",), "dense_h_to_4h": ("up",), "dense_4h_to_h": ("down",)},
    **{"input_linear": ("gate", "up"), "output_linear": ("down",)},
}
_DEEP = re.compile(r"(mlp|ffn|feed_forward|moe)\.?\*")
_WORDS = re.compile(r"[a-z][a-z0-9_]*")


class Module(NamedTuple):
    """What a name means; nothing is stated by None and by no pieces."""

    layers: frozenset[int] | None
    part: str | None
    pieces: frozenset[str]
    has_piece: bool  # whether the name ends in a piece, be it a known one or not
    is_never_quantized: bool
    is_deep: bool = False  # whether what lies inside an MLP is meant too, e.g. experts
    is_all: bool = False  # whether the name is of whole layers

    def is_beyond(self, matrices: Iterable[Matrix]) -> bool:
        """Return whether the name is of a layer after the last, which predicts further tokens."""
        last = max((matrix.layer for matrix in matrices), default=-1)
        return self.layers is not None and all(layer > last for layer in self.layers)

    def select(self, matrices: Iterable[Matrix], *, is_target: bool = False) -> list[Matrix]:
        """Return the matrices that the name covers.

        A target with pieces that are not known means its whole part; an exception, nothing.
        """
        if self.is_never_quantized:
            return []
        in_layers = [matrix for matrix in matrices if self._is_of_layers(matrix)]
        chosen = [matrix for matrix in in_layers if self._is_of_part(matrix)]
        if self.part == "mlp" and (self.is_deep or not self.has_piece):
            # The MLP of a layer with experts is all its experts, unless it has both.
            with_mlp = {matrix.layer for matrix in chosen}
            chosen += [
                matrix
                for matrix in in_layers
                if matrix.part in ("shared_experts", "experts") and matrix.layer not in with_mlp
            ]
        if not self.has_piece:
            return chosen
        of_pieces = [matrix for matrix in chosen if matrix.piece in self.pieces]
        return chosen if is_target and not of_pieces else of_pieces

    def _is_of_layers(self, matrix: Matrix) -> bool:
        if self.part == "head":
            return matrix.part == "head"
        return matrix.part in PARTS and (self.layers is None or matrix.layer in self.layers)

    def _is_of_part(self, matrix: Matrix) -> bool:
        if self.part is None:
            return self.is_all or self.has_piece
        return matrix.part == self.part


def read_module(name: str) -> Module:
    """Return what a module's name means, be it a path, a pattern or a part of either."""
    pattern = name.removeprefix("re:").removeprefix("^")
    layers, rest = _split_layers(pattern)
    module = pattern.replace("\\", "").rstrip(".*$")
    rest = rest.replace("\\", "").rstrip(".*$")
    if _HEAD.search(module):
        return Module(None, "head", frozenset(), False, False)
    names_layers = rest != pattern.replace("\\", "").rstrip(".*$")
    is_all = not rest if names_layers else module in ("", "model", "model.layers", "layers")
    part = next((part for part, words in _PART_NAMES if words.search(rest)), None)
    last = re.split(r"[.*](?![^()]*\))", rest)[-1]
    pieces, has_piece = _pieces(last)
    if part is None:
        has_piece = bool(pieces)
    never = _NEVER_QUANTIZED.search(module) is not None
    is_deep = _DEEP.search(module) is not None
    return Module(layers, part, pieces, has_piece, never, is_deep, is_all)


def _split_layers(pattern: str) -> tuple[frozenset[int] | None, str]:
    """Return the layers that a pattern names, None for all, and what follows."""
    match = _LAYERS.search(pattern)
    if match is None:
        return None, pattern
    tail = pattern[match.end() :]
    end = _end_of_step(tail)
    step, rest = tail[:end], tail[end:]
    number = step.removesuffix("*")
    if number.isdecimal():
        return frozenset({int(number)}), rest
    try:
        numbers = re.compile(step)
    except re.error:  # a glob
        return None, rest
    layers = frozenset(i for i in range(_MOST_LAYERS) if numbers.fullmatch(str(i)))
    return (layers if 0 < len(layers) < _MOST_LAYERS else None), rest


def _end_of_step(tail: str) -> int:
    """Return where the pattern of a layer's number ends: at a dot outside of brackets."""
    depth = 0
    i = 0
    while i < len(tail):
        if tail[i] == "\\" and tail[i + 1 : i + 2] != ".":
            i += 2
            continue
        if depth == 0 and tail[i] in ".\\":
            return i
        depth += (tail[i] in "([") - (tail[i] in ")]")
        i += 1
    return len(tail)


def _pieces(last: str) -> tuple[frozenset[str], bool]:
    """Return the pieces that the last word of a name means, and whether it is about pieces."""
    words = [word for word in _WORDS.findall(last) if word not in ("proj", "_proj", "weight")]
    pieces: set[str] = set()
    is_piece = False
    for word in words:
        short = word.removesuffix("_proj")
        if any(pattern.fullmatch(word) or pattern.search(word) for _, pattern in _PART_NAMES) and (
            short not in _PIECES and word not in _PIECES
        ):
            continue  # the word names the part itself
        is_piece = True
        pieces |= {*_PIECES.get(word, ()), *_PIECES.get(short, ())}
    return frozenset(pieces), is_piece

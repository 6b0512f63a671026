"""What an LLM has in memory beyond what its text config says: encoders, and the files themselves.

In goes a `config.json`. Where weights lie beside it, their sizes count before any formula: the
headers of `*.safetensors`, else `model.safetensors.index.json`. Encoders of images are estimated
from `vision_config` where no weights are there.
"""

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sextant.base.errors import InputError
from sextant.base.files import read_object

INDEX = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000  # as the format allows
_FLOATS = {"F32", "F16", "BF16"}
_OF_ENCODERS = re.compile(
    r"vision|visual|audio|image|(^|\.)vit\.|mm_|multi_?modal|projector|merger|resampler|aligner"
)
_FURTHER_TOKENS = re.compile(r"(^|\.)(mtp|nextn)")
_LAYER = re.compile(r"\.layers\.(\d+)\.")


class StoredWeights(NamedTuple):
    """Weights as the files beside a config have them."""

    file: str  # what says so
    n_bytes: int
    n_text_parameters: int | None  # None: packed, or the headers are not there


class _Tensor(NamedTuple):
    name: str
    dtype: str
    n: int
    n_bytes: int


def read_stored_weights(config_path: str | Path, n_layers: int) -> StoredWeights | None:
    """Return the sizes of the weights beside a config; None: there are none.

    Tensors of layers that predict further tokens, after the last of `n_layers`, are left out where
    headers name them.

    Raises:
        InputError: a file is damaged.
    """
    folder = Path(config_path).parent
    if Path(config_path).name != "config.json":
        return None
    files = sorted(folder.glob("*.safetensors"))
    if files and all(map(_is_whole, files)):
        return _sum_of_headers(files, n_layers)
    if not (folder / INDEX).is_file():
        return None
    metadata = read_object(folder / INDEX, fix="save the index again").get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(total, int | float) or isinstance(total, bool) or not 0 < total < 1e16:
        problem = f"{total!r} is not a size in bytes"
        fix = "save the index again, or remove it"
        raise InputError(problem, file=folder / INDEX, field="metadata.total_size", fix=fix)
    return StoredWeights(INDEX, int(total), None)


def _is_whole(file: Path) -> bool:
    """Return whether a file is more than the pointer of a large file that was not downloaded."""
    with file.open("rb") as stream:
        return not stream.read(8).startswith(b"version ")


def _sum_of_headers(files: list[Path], n_layers: int) -> StoredWeights:
    n_bytes = 0
    n_text = 0
    is_packed = False
    for file in files:
        for tensor in _tensors(file):
            layer = _LAYER.search(tensor.name)
            is_encoder = _OF_ENCODERS.search(tensor.name) is not None
            is_beyond = layer is not None and int(layer[1]) >= n_layers and not is_encoder
            if is_beyond or _FURTHER_TOKENS.search(tensor.name):
                continue
            n_bytes += tensor.n_bytes
            n_text += tensor.n * (not is_encoder)
            is_packed |= tensor.dtype not in _FLOATS
    name = files[0].name if len(files) == 1 else f"{len(files)} files *.safetensors"
    return StoredWeights(name, n_bytes, None if is_packed else n_text)


def _tensors(file: Path) -> Iterator[_Tensor]:
    """Yield the tensors that a file's header names; InputError: it is no safetensors file."""
    fix = "download the file again, or remove it"
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _MOST_HEADER_BYTES:
            raise InputError("not a safetensors file: it has no header", file=file, fix=fix)
        text = stream.read(length)
    try:
        header = json.loads(text)
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                yield _Tensor(name, entry["dtype"], math.prod(entry["shape"]), last - first)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError("the header of the file is damaged", file=file, fix=fix) from None


_GATED = re.compile(r"silu|swish|pixtral")
_WIDEST_FFN = 6  # widths of an MLP over the hidden size; GLM-4V's field is its projector's


def count_encoder_parameters(path: str | Path, hidden_size: int) -> int:
    """Return about how many parameters the encoder of images has; 0: none, or it has no sizes.

    Layers of attention and MLP, and the projection to `hidden_size`; tables of positions and the
    first convolution are small.
    """
    values = read_object(path, fix="save the config again")
    vision = values.get("vision_config")
    if not isinstance(vision, dict):
        return 0
    width = _size(vision, "embed_dim", "hidden_size", "width")
    if not width:
        return 0
    layers = _size(vision, "num_hidden_layers", "depth", "layers") or 24
    layers += _size(vision, "num_global_layers")
    out = _size(vision, "out_hidden_size") or hidden_size
    ratio = vision.get("mlp_ratio")
    ffn = _size(vision, "intermediate_size")
    if not ffn:
        ffn = round(ratio * width) if isinstance(ratio, int | float) and ratio < 100 else 4 * width
    if ffn > _WIDEST_FFN * width:
        ffn = out
    kind = f"{vision.get('hidden_act')} {vision.get('model_type')}"
    n_matrices = 3 if _GATED.search(kind) else 2
    merged = width * _size(vision, "spatial_merge_size") ** 2
    projection = merged * (merged + out) if merged else out * (width + out)
    return layers * (4 * width**2 + n_matrices * width * ffn) + projection


def _size(values: dict[str, Any], *names: str) -> int:
    """Return the first of some sizes that is a whole number below 100,000; 0: there is none."""
    for name in names:
        value = values.get(name)
        if type(value) is int and 0 < value < 100_000:
            return value
    return 0

"""Reads a Hugging Face `config.json`: fields by any of their names; unread ones are errors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.files import read_json

_ALIASES = (
    ("hidden_size", "n_embd", "n_embed", "d_model"),
    ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv"),
    ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
    ("num_experts", "num_local_experts", "n_routed_experts"),
    ("num_experts_per_tok", "experts_per_token"),
    ("dtype", "torch_dtype"),
)
_GROUPS = {name: group for group in _ALIASES for name in group}

# Fields whose value changes the size or the cost. If a family's code does not read one that is
# set, the config is of a variant that would be sized wrongly.
_SIZING = re.compile(
    r"bias$|^tie_|hidden_size|intermediate|ffn|n_inner|vocab_size|head_dim|heads$|_layers$|n_layer"
    r"|n_head|expert|moe|lora|mamba|ssm|conv|cross_attention|multi_query|pruned_heads|layer_types"
    r"|^sliding_window$|q(uery|k)_(layer)?norm|qk_ln|^_remove_final_layer_norm$|^compression_config$"
)
# Fields of the text part that a vision-language config may have outside of it.
_SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
_MOST = 10**9  # far above any size of an LLM: a larger number has a digit too many
_LONGEST = 100
"""Characters of each end of a problem that repeats a long value."""
SHIPPED = PROJECT / "resources" / "llms"


class Config:
    """An LLM's config: a missing field is an error that names it, never a default."""

    def __init__(self, values: Mapping[str, Any], file: Path | str) -> None:
        self.values, self.file = values, file
        self._read: set[str] = set()

    def error(self, problem: str, field: str | None, fix: str) -> InputError:
        """Return the error to raise about a field of this config."""
        if len(problem) > 2 * _LONGEST:
            problem = f"{problem[:_LONGEST]} … {problem[-_LONGEST:]}"
        return InputError(problem, file=self.file, field=field, fix=fix)

    def optional(self, name: str, default: Any = None) -> Any:
        """Return a field whose absence has a meaning that the family's own code defines.

        `null` is how Hugging Face writes "not set".
        """
        group = _GROUPS.get(name, (name,))
        self._read.update(group)
        given = {key: self.values[key] for key in group if self.values.get(key) is not None}
        if len({repr(value) for value in given.values()}) > 1:
            names = ", ".join(f"{key} = {value}" for key, value in given.items())
            raise self.error(f"names of one thing disagree ({names})", name, "keep the right one")
        return next(iter(given.values()), default)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field that has to be there, unless it has a default."""
        value = self.optional(name, default)
        if value is None:
            raise self.error("the field is missing", name, f"add '{name}' as Hugging Face names it")
        return value

    def integer(
        self, name: str, default: int | None = None, least: int = 1, most: int = _MOST
    ) -> int:
        """Return a size from `least` to `most`; it may be absent if it has a default."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            fix = f"give a whole number of at least {least} and at most {most:,}"
            raise self.error(f"{value!r} is not a size", name, fix)
        return value

    def word(self, name: str) -> str:
        """Return a name that has to be there."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(f"{value!r} is not a name", name, "write one name in quotes")
        return value

    def listing(self, name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """Return a list of names (`str`) or whole numbers (`int`); it may have a default."""
        value = self.get(name, default)
        # By the exact type: `true` is an `int` to Python.
        if not isinstance(value, list) or any(type(each) is not kind for each in value):
            what = {str: "names", int: "whole numbers"}[kind]
            raise self.error(f"{value!r} is not a list of {what}", name, f"give {what} in [ ]")
        return value

    def by_layer(
        self, name: str, layers: int, allowed: tuple[Any, ...], default: list[Any] | None = None
    ) -> list[Any]:
        """Return what a field says of each layer, one of `allowed`."""
        values = self.listing(name, type(allowed[0]), default)
        if len(values) != layers or not set(values) <= set(allowed):
            words = " or ".join(map(str, allowed))
            fix = f"give {words} for each of the {layers} layers"
            raise self.error("unknown kinds of layers", name, fix)
        return values

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a switch; it may be absent if it has a default."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{value!r} is not true or false", name, "write true or false")
        return value

    def require(self, name: str, expected: Any) -> None:
        """Raise InputError if a field has another value than the one that the formula is for."""
        if self.optional(name, expected) != expected:
            text = str(expected).lower() if isinstance(expected, bool) else expected
            fix = f"only {text} is supported; add the variant to sextant/facts/llm/"
            raise self.error("unsupported variant", name, fix)

    def ignore(self, *names: str) -> None:
        """Mark fields as read that change nothing in this family."""
        self._read.update(names)

    def refuse_unread_fields(self) -> None:
        """Raise InputError if a field that changes size or cost was not read."""
        for name, value in self.values.items():
            if value and name not in self._read and _SIZING.search(name):
                family = self.values["model_type"]
                problem = f"{value!r} may change the size, and nothing is known of it in {family}"
                fix = "remove it if it has no effect, or add the variant to sextant/facts/llm/"
                raise self.error(problem, name, fix)


class Section(Config):
    """A part of a config: errors name its fields as `<name>.<field>`."""

    def __init__(self, values: Any, file: Path | str, name: str) -> None:
        super().__init__(values, file)
        self._name = name
        if not isinstance(values, dict):
            raise InputError("not a JSON object", file=file, field=name, fix="save it again")

    def error(self, problem: str, field: str | None, fix: str) -> InputError:
        """Return the error to raise about a field of this part."""
        return super().error(problem, f"{self._name}.{field}", fix)


def read_config(path: str | Path, dtype: str | None = None) -> Config:
    """Read the part of a `config.json` that describes the LLM, `dtype` in place of its own.

    Raises:
        InputError: no such file, not JSON, or a nested config that generates no text.
    """
    try:
        values = read_json(path, fix="save the config again")
    except FileNotFoundError:
        fix = "save the LLM's config.json under this name"
        raise InputError("there is no such file", file=path, fix=fix) from None
    if not isinstance(values, dict):
        raise InputError("not a JSON object", file=path, fix="save the config again")
    text = _quantized_by_modelopt(Path(path)) | _text_part(values, path)
    if dtype is not None:
        text = {**text, "torch_dtype": None, "dtype": dtype}
    return Config(text, path)


def _quantized_by_modelopt(config: Path) -> dict[str, Any]:
    """Return what NVIDIA's ModelOpt writes into `hf_quant_config.json` beside a `config.json`."""
    file = config.with_name("hf_quant_config.json")
    if config.name != "config.json" or not file.is_file():
        return {}
    values = read_json(file, fix="save the file again")
    given = values.get("quantization") if isinstance(values, dict) else None
    if not isinstance(given, dict):
        fix = "save the file again"
        raise InputError(
            "it is missing, or not an object", file=file, field="quantization", fix=fix
        )
    names = {
        "quant_algo": "quant_algo",
        "exclude_modules": "ignore",
        "kv_cache_quant_algo": "kv_cache_scheme",
    }
    renamed = {names[name]: value for name, value in given.items() if name in names}
    return {"quantization_config": {"quant_method": "modelopt", **renamed}}


def _text_part(values: dict[str, Any], file: Path | str) -> dict[str, Any]:
    """Return the config itself, or `text_config` of one that takes images as well."""
    if "text_config" not in values:
        return values
    outer = Config(values, file)
    text, architectures = outer.get("text_config"), outer.listing("architectures", str)
    if not isinstance(text, dict):
        raise outer.error("not a JSON object", "text_config", "save the config again")
    if not all(name.endswith(("Generation", "ForCausalLM")) for name in architectures):
        problem = f"{architectures} does not generate text"
        raise outer.error(problem, "architectures", "use a config of a generating LLM")
    for name in _SHARED:
        if None not in (ours := (values.get(name), text.get(name))) and ours[0] != ours[1]:
            problem = f"{ours[0]!r}, but {ours[1]!r} inside text_config"
            raise outer.error(problem, name, "keep the right one")
    both = {name: values[name] for name in _SHARED if name in values}
    return both | {name: value for name, value in text.items() if value is not None}


def config_file(hf_config: Path) -> Path:
    """Return the file of an LLM's config: the one that is given, or that of its folder."""
    return hf_config / "config.json" if hf_config.is_dir() else hf_config


def name_of(hf_config: Path) -> str:
    """Return the name of an LLM: its file's, or its folder's if the file is `config.json`."""
    path = config_file(hf_config)
    if path.name == "config.json":
        return path.resolve().parent.name or path.stem
    return path.stem


def shipped_config(llm_id: str) -> Path | None:
    """Return the config of an LLM that ships with this project, None if there is none."""
    path = SHIPPED / f"{Path(llm_id).name}.json"
    return path if path.stem == llm_id and path.is_file() else None

"""Reads an LLM's `config.json`: its text part, and its fields by any of their usual names.

What a config leaves out and the reader fills in is noted in `Config.assumed`, one sentence each.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import read_json, read_object

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_ALIASES = (
    ("hidden_size", "n_embd", "n_embed", "d_model", "dim", "model_dim", "embed_dim"),
    (
        *("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "hidden_dim"),
        *("block_ff_dim", "ff_intermediate_size"),
    ),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    (
        *("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads"),
        *("num_query_groups", "num_attention_groups"),
    ),
    ("head_dim", "kv_channels"),
    ("vocab_size", "padded_vocab_size"),
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
    (
        *("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k"),
        *("moe_topk", "moe_k", "top_k_experts", "router_top_k"),
    ),
    (
        *("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"),
        "expert_intermediate_size",
    ),
    (
        *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        *("num_shared_expert", "n_shared_expert"),
    ),
    (
        *("shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size"),
        *("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"),
    ),
    ("first_k_dense_replace", "num_dense_layers", "n_dense_layers"),
    ("moe_latent_size", "routed_expert_hidden_size", "moe_hidden_size"),
    ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"),
    ("mamba_head_dim", "mamba_d_head", "mamba_headdim"),
    ("ssm_state_size", "mamba_d_state"),
    ("n_groups", "mamba_n_groups", "mamba_ngroups"),
    ("conv_kernel", "mamba_d_conv"),
    ("use_qk_norm", "qk_norm", "use_qk_layernorm", "qk_layernorm"),
    ("dtype", "torch_dtype"),
)
_GROUPS = {name: group for group in _ALIASES for name in group}
_CONTEXT = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length"),
    *("model_max_length", "max_sequence_length", "max_seqlen", "seq_len"),
)
"""Names of the context; a config may have several that differ, and the first of them counts."""

# Fields whose value changes the size or the cost, if the family's code does not read them.
_SIZING = re.compile(
    r"hidden_size|intermediate|ffn|vocab_size|head_dim|heads$|_layers$|expert|moe|lora|mamba|ssm"
    r"|conv|layer_types|^sliding_window$"
)
# Those without which attention, state or experts cannot be told.
_REFUSED = re.compile(
    r"^(kv|q|o)_lora_rank$|cross_attention(_layers|$)|^pruned_heads$|^compression_config$"
    r"|^(swa|global|index|linear|kda|dsa)_\w*(dim|heads|rank)$|^mamba_([dn]_|num_heads)|^ssm_(state|d_)"
    r"|^(num|n)_(routed_|local_)?experts$|_remove_final_layer_norm"
    r"|(expert|experts|moe|attention|router)_(hidden|intermediate)_size$"
)
_HARMLESS = re.compile(
    r"dropout|_loss|_coef|_alpha|jitter|rope|rotary|_norm_eps|scal|(topk_)?group|score|norm_topk"
    r"|chunk_size|_cache|^head_dim$|_index$|implementation|backend|dtype|router|seq_aux|nextn|mtp"
    r"|initializer|_type$|balanc|zloss|z_loss|_fusion|^tie_|use_cache|hidden_size_s|max_window"
    r"|num_hidden_layers|kernels$|normali|fp32|_bias|act_fn|_config$"
)
_ENCODERS = {"vision_config": "images", "audio_config": "sound", "vision": "images"}
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "llm")
_FLATTENED = ("attn_config", "ffn_config", "linear_attn_config")
# Fields of the text part that a vision-language config may have outside of it.
_SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
_OTHER_TASKS = re.compile(
    r"CLIP\w*Model|Siglip|For(Sequence|Token|Image)Classification|ForMaskedLM|ForQuestionAnswering"
    r"|RewardModel|EmbeddingModel|ForPreTraining"
)
_OTHER_FILES = (
    ("tokenizer_class", "a tokenizer's configuration (tokenizer_config.json)"),
    ("added_tokens", "a tokenizer (tokenizer.json)"),
    ("peft_type", "an adapter's configuration (adapter_config.json)"),
    ("weight_map", "an index of weights (model.safetensors.index.json)"),
    ("image_processor_type", "an image processor's configuration (preprocessor_config.json)"),
    ("_class_name", "a diffusion pipeline (model_index.json)"),
    ("eos_token_id", "a generation configuration (generation_config.json)"),
    ("temperature", "a generation configuration (generation_config.json)"),
)
_MOST = 10**9  # far above any size of an LLM: a larger number has a digit too many
_UNLIMITED = 2**31 - 1
_LONGEST = 100  # characters of each end of a problem that repeats a long value
FAMILIES_FILE = "sextant/facts/families.yaml"


class Config:
    """An LLM's config, or a section of it: a missing field is an error that names it."""

    def __init__(self, values: Any, file: Path | str, section: str = "") -> None:
        self.values = values
        self.file = file
        self.is_nested = False  # a text part, whose class may have sizes that are not written
        self.outer_types: tuple[str, ...] = ()  # `model_type` of what it is nested in
        self.assumed: list[str] = []
        self._section = section
        self._read: set[str] = set()
        if not isinstance(values, dict):
            problem = "not a JSON object"
            raise InputError(problem, file=file, field=section or None, fix="save it again")

    def section(self, field: str, values: Any = None) -> "Config":
        """Return a part, by default the value of a field; errors name `<section>.<field>`."""
        name = f"{self._section}.{field}" if self._section else field
        part = Config(self.get(field) if values is None else values, self.file, name)
        part.assumed = self.assumed
        return part

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """Return the config with values in place of its own, e.g. those of one layer."""
        other = Config({**self.values, **values}, self.file, self._section)
        other.assumed = self.assumed
        other._read = self._read
        return other

    def error(self, problem: str, field: str, fix: str) -> InputError:
        """Return the error to raise about a field of this config."""
        if len(problem) > 2 * _LONGEST:
            problem = f"{problem[:_LONGEST]} … {problem[-_LONGEST:]}"
        field = f"{self._section}.{field}" if self._section else field
        return InputError(problem, file=self.file, field=field, fix=fix)

    def assume(self, sentence: str) -> None:
        """Note what is assumed, once."""
        if sentence not in self.assumed:
            self.assumed.append(sentence)

    def optional(self, name: str, default: Any = None) -> Any:
        """Return a field that may be absent or `null`; the family's code gives that a meaning."""
        group = _GROUPS.get(name, (name,))
        self._read.update(group)
        values = {key: self.values[key] for key in group if self.values.get(key) is not None}
        if len({repr(value) for value in values.values()}) > 1:
            names = ", ".join(f"{key} = {value}" for key, value in values.items())
            raise self.error(f"names of one thing disagree ({names})", name, "keep the right one")
        return next(iter(values.values()), default)

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the first of some fields that is there, or the default."""
        values = [self.optional(name) for name in names]
        return next((value for value in values if value is not None), default)

    def name_of(self, name: str) -> str:
        """Return the name that the config has for a field."""
        group = _GROUPS.get(name, (name,))
        return next((key for key in group if self.values.get(key) is not None), name)

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
        return self.size(self.get(name, default), name, least, most)

    def size(self, value: Any, name: str, least: int = 1, most: int = _MOST) -> int:
        """Return the value of a field if it is a size; InputError: it is none."""
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            fix = f"give a whole number of at least {least} and at most {most:,}"
            raise self.error(f"{value!r} is not a size", name, fix)
        return value

    def integers(self, *names: str) -> list[int]:
        """Return sizes that have to be there."""
        return [*map(self.integer, names)]

    def sizes_by_layer(
        self, name: str, layers: int, default: int | None = None, least: int = 1
    ) -> list[int]:
        """Return a size of each layer, from one number or a list of them."""
        value = self.get(name, default)
        if not isinstance(value, list):
            return [self.size(value, name, least)] * layers
        if len(value) != layers:
            fix = f"give one number, or one for each of the {layers} layers"
            raise self.error(f"{len(value)} sizes", name, fix)
        return [self.size(item, name, least) for item in value]

    def fill(self, sizes: Mapping[str, int]) -> None:
        """Take sizes that are left out as the family's class has them, and note them."""
        for name, size in sizes.items():
            is_context = name == _CONTEXT[0]
            stated = self.context() if is_context else self.optional(name)
            if stated is None:
                self.values = {**self.values, name: size}
                if size < _UNLIMITED:
                    self.assume(f"{name} is {size:,}, as the family's class has it.")

    def context(self) -> int | None:
        """Return the longest sequence in tokens; None: the config does not say."""
        self._read.update(_CONTEXT)
        for name in _CONTEXT:
            value = self.values.get(name)
            if value is not None:
                return self.size(value, name, most=10**10)
        return None

    def word(self, name: str) -> str:
        """Return a name that has to be there."""
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(f"{value!r} is not a name", name, "write one name in quotes")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """Return a switch; it may be absent if it has a default."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{value!r} is not true or false", name, "write true or false")
        return value

    def listing(self, name: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        """Return a list of names (`str`) or whole numbers (`int`); it may have a default."""
        value = self.get(name, default)
        # By the exact type: `true` is an `int` to Python.
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            what = {str: "names", int: "whole numbers"}[kind]
            raise self.error(f"{value!r} is not a list of {what}", name, f"give {what} in [ ]")
        return value

    def by_layer(
        self, name: str, layers: int, allowed: Sequence[Any], default: list[Any] | None = None
    ) -> list[Any]:
        """Return the value of each layer, one of `allowed`, from a field that lists them."""
        values = self.listing(name, type(allowed[0]), default)
        if len(values) != layers or not set(values) <= set(allowed):
            words = " or ".join(map(str, allowed))
            fix = f"give {words} for each of the {layers} layers"
            raise self.error("unknown kinds of layers", name, fix)
        return values

    def require(self, **expected: Any) -> None:
        """Raise InputError if a field has a value that the family's formula does not cover."""
        for name, value in expected.items():
            if self.optional(name, value) != value:
                text = str(value).lower() if isinstance(value, bool) else value
                fix = f"only {text} is supported; add the variant to {FAMILIES_FILE}"
                raise self.error("unsupported variant", name, fix)

    def has(self, name: str) -> bool:
        """Return whether a field is there under any of its names, be it `null`."""
        return any(key in self.values for key in _GROUPS.get(name, (name,)))

    def ignore_all(self, prefixes: tuple[str, ...]) -> None:
        """Mark all fields as read whose names begin so: they change nothing in this LLM."""
        self._read.update(name for name in self.values if name.startswith(prefixes))

    def ignore(self, *names: str) -> None:
        """Mark fields as read: they change nothing in this family."""
        self._read.update(names)

    def judge_unread_fields(self) -> None:
        """Note fields that may change the size and were not read.

        Raises:
            InputError: attention, state or experts cannot be told without one of them.
        """
        unread = []
        for name, value in self.values.items():
            if not value or name in self._read:
                continue
            if _REFUSED.search(name):
                problem = f"{value!r} changes attention, state or experts, and it is not known how"
                fix = f"remove it if it has no effect, or add the variant to {FAMILIES_FILE}"
                raise self.error(problem, name, fix)
            if _SIZING.search(name) and not _HARMLESS.search(name):
                unread.append(name)
        if unread:
            text = "fields that were not used, and may change the size"
            self.assume(f"There are {text}: {', '.join(sorted(unread))}.")


def read_config(path: str | Path, dtype: str | None = None) -> Config:
    """Read the text part of a `config.json`; InputError: not JSON, or no LLM that generates."""
    values = _read_values(path)
    outer = Config(values, path)
    _refuse_other_tasks(outer)
    text, outer_types = _text_part(outer, values)
    for name in _FLATTENED:
        if isinstance(text.get(name), dict):
            text = {**text[name], **text}
    file = Path(path).with_name("hf_quant_config.json")  # of NVIDIA's ModelOpt
    if Path(path).name == "config.json" and file.is_file():
        text = {"quantization_config": _modelopt(file), **text}
    if dtype is not None:
        text = {**text, "torch_dtype": None, "dtype": dtype}
    config = Config(text, path)
    config.is_nested = bool(outer_types)
    config.outer_types = outer_types
    return config


def _read_values(path: str | Path) -> dict[str, Any]:
    """Return the JSON object of an LLM's config; InputError: the file is of another kind."""
    try:
        values = read_json(path, fix="save the config again")
    except FileNotFoundError:
        fix = "save the LLM's config.json under this name"
        raise InputError("there is no such file", file=path, fix=fix) from None
    fix = "give the config.json of an LLM"
    if not isinstance(values, dict):
        problem = "not a JSON object, so it is not an LLM's config.json"
        raise InputError(problem, file=path, fix=fix)
    is_config = any(name in values for name in ("model_type", "architectures", *_TEXT_PARTS))
    sizes = (*_GROUPS["hidden_size"], *_GROUPS["num_hidden_layers"])
    if not is_config and not any(name in values for name in sizes):
        what = next((text for name, text in _OTHER_FILES if name in values), "another file")
        problem = f"not an LLM's config.json: it has no model_type and no sizes; it is {what}"
        raise InputError(problem, file=path, fix=fix)
    return values


def _refuse_other_tasks(outer: Config) -> None:
    architectures = outer.optional("architectures")
    if architectures is None:
        return
    names = outer.listing("architectures", str)
    if names and all(map(_OTHER_TASKS.search, names)):
        fix = "use a config of a generating LLM"
        raise outer.error(f"{names} does not generate text", "architectures", fix)


def _text_part(outer: Config, values: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the part that describes the LLM, and the model types of what it lies in."""
    outer_types: tuple[str, ...] = ()
    while name := next((key for key in _TEXT_PARTS if isinstance(values.get(key), dict)), None):
        inner = values[name]
        for field in _SHARED:
            if None not in (ours := (values.get(field), inner.get(field))) and ours[0] != ours[1]:
                if field == "tie_word_embeddings":  # the head belongs to the whole
                    continue
                problem = f"{ours[0]!r}, but {ours[1]!r} inside {name}"
                raise outer.error(problem, field, "keep the right one")
        if isinstance(model_type := values.get("model_type"), str):
            outer_types = (model_type, *outer_types)
        shared = {field: values[field] for field in _SHARED if field in values}
        if _is_tied_outside(values):  # from 5.0 on, the head belongs to the whole
            inner = {**inner, "tie_word_embeddings": values["tie_word_embeddings"]}
        values = shared | {key: value for key, value in inner.items() if value is not None}
    if "text_config" in values:
        outer.section("text_config", values["text_config"] or [])
    return values, outer_types


def _is_tied_outside(values: dict[str, Any]) -> bool:
    version = str(values.get("transformers_version") or "0").split(".", maxsplit=1)[0]
    is_new = version.isdecimal() and int(version) >= 5
    return is_new and values.get("tie_word_embeddings") is not None


def _modelopt(file: Path) -> dict[str, Any]:
    config = Config(read_object(file, fix="save the file again"), file)
    stated = config.section("quantization")
    return {
        "quant_method": "modelopt",
        "quant_algo": stated.optional("quant_algo"),
        "ignore": stated.optional("exclude_modules"),
        "kv_cache_scheme": stated.optional("kv_cache_quant_algo"),
        "group_size": stated.optional("group_size"),
        "quantized_layers": stated.optional("quantized_layers"),
    }


def encoded_inputs(path: str | Path) -> list[str]:
    """Return the inputs beside text that an LLM takes, e.g. images."""
    values = read_object(path, fix="save the config again")
    inputs = [what for name, what in _ENCODERS.items() if values.get(name)]
    return list(dict.fromkeys(inputs))

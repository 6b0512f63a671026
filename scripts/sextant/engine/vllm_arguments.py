"""What a configuration may ask of a server beyond what the pipeline sets itself."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError

_OF_SEXTANT = {
    **dict.fromkeys(
        ("host", "port", "uds", "ssl-keyfile", "ssl-certfile", "ssl-ca-certs"),
        "remove it: servers listen on loopback, each at a free port",
    ),
    "api-key": "remove it: each server gets a fresh key, which no command line shows",
    "hf-token": "remove it: download the weights beforehand, and give their folder in llms.tsv",
    "config": "write its arguments here, where they can be checked",
    **dict.fromkeys(("model", "served-model-name"), "name the weights in llms.tsv"),
    "load-format": "remove it: weights are read from safetensors, which hold no code",
    "dtype": "set engine.dtype",
    "block-size": "set engine.block_size_tokens",
    "max-num-seqs": "set engine.max_num_seqs",
    **dict.fromkeys(
        ("gpu-memory-utilization", "device-memory-utilization"), "set engine.memory_utilization"
    ),
    "seed": "set seed",
    "enable-prefix-caching": "remove it: prompts are unique, and no cache may help a later level",
    **dict.fromkeys(
        ("kv-events-config", "otlp-traces-endpoint"),
        "remove it: a server talks to its load client alone",
    ),
    "max-model-len": "set the caps of the workload",
    **dict.fromkeys(
        ("num-gpu-blocks-override", "kv-cache-memory-bytes"),
        "set batch_weight_tokens of a variant",
    ),
    **dict.fromkeys(
        (
            *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
            *("data-parallel-address", "data-parallel-rpc-port", "data-parallel-size-local"),
            *("data-parallel-rank", "nnodes", "node-rank", "master-addr", "master-port"),
            *("headless", "prefill-context-parallel-size", "decode-context-parallel-size"),
            "device-ids",
        ),
        "give the GPU profile its number of GPUs; a replica runs on one node",
    ),
}
"""vLLM's options that are not the configuration's to give, and what to do instead."""
_SHORT = {
    **{"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size"},
    **{"n": "nnodes", "r": "node-rank", "dpa": "data-parallel-address"},
    **{"dpp": "data-parallel-rpc-port", "dpl": "data-parallel-size-local"},
    **{"dpn": "data-parallel-rank", "dpr": "data-parallel-rank"},
    **{"pcp": "prefill-context-parallel-size", "dcp": "decode-context-parallel-size"},
}
_RUNS_CODE = (
    *("trust-remote-code", "tool-parser-plugin", "reasoning-parser-plugin", "io-processor-plugin"),
    *("logits-processors", "middleware", "worker-cls", "worker-extension-cls", "scheduler-cls"),
    *("model-class-overrides", "distributed-executor-backend", "kv-transfer-config"),
    *("ec-transfer-config", "log-config-file"),
)


# A class or function by its module, as in `{"backend": "package.module.function"}`.
_QUALIFIED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def check_extra_arguments(arguments: Sequence[str], file: str | Path) -> list[str]:
    """Check `engine.extra_arguments`; return those that let a server run code of others.

    vLLM also takes `_` for `-`, `--name=value` and any beginning of a name that is unique. Raises
    InputError for an argument that would change what the pipeline itself decides.
    """
    for argument in arguments:
        for name in _names(argument, _OF_SEXTANT):
            problem = f"{argument!r} sets {name}, which is the pipeline's to set"
            field, fix = "engine.extra_arguments", _OF_SEXTANT[name]
            raise InputError(problem, file=file, field=field, fix=fix)
    return [
        argument
        for argument, following in zip_longest(arguments, arguments[1:], fillvalue="")
        if _names(argument, _RUNS_CODE) or _loads_code(argument, following)
    ]


def _names(argument: str, options: Iterable[str]) -> list[str]:
    """Return the options that an argument may mean, none if it is a value or another option."""
    found = re.match(r"(--?)([^=.]+)", argument)
    if not found:
        return []
    given = found[2].replace("_", "-")
    if found[1] == "-":
        # `-tp2` is `-tp 2`.
        return [name for short, name in _SHORT.items() if re.fullmatch(rf"{short}\d*", given)]
    return [name for name in options if name.startswith(given)]


def _loads_code(argument: str, following: str) -> bool:
    """Return whether an option of many parts names code: `--x {"k": "a.b"}`, `--x.k=a.b`."""
    option, _, value = argument.partition("=")
    if not option.startswith("-"):
        return False
    value = value or following
    try:
        parts = json.loads(value)
    except ValueError:
        parts = value
    if "." in option:
        parts = {option: parts}
    return isinstance(parts, dict) and any(map(_is_code, _leaves(parts)))


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part, key)
    else:
        yield key, value


def _is_code(leaf: tuple[str, Any]) -> bool:
    key, value = leaf
    is_text = isinstance(value, str) and value != ""
    return is_text and (key.endswith("plugin") or bool(_QUALIFIED_NAME.fullmatch(value)))

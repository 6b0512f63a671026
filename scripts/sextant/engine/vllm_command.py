"""How a vLLM server is started (command line, environment), and how its log is read."""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import read_yaml
from sextant.engine.protocol import ServerSpec
from sextant.experiment.servers import EngineSettings

DATA_SHEET = read_yaml(resource("engines/vllm.yaml"))
"""Options, environment and log texts of vLLM, as plain data."""
_INSTEAD = {name: it["instead"] for it in DATA_SHEET["reserved_options"] for name in it["options"]}
_ENVIRONMENT = DATA_SHEET["environment"]
MODEL_NAME = "sextant"  # what the server calls the LLM
_IN_ENGINE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


def n_blocks(spec: ServerSpec, settings: EngineSettings) -> int:
    """Return the KV blocks that hold the batch weight; vLLM keeps one block for itself."""
    return -(-spec.batch_weight_tokens // settings.block_size_tokens) + 1


def command(spec: ServerSpec, settings: EngineSettings, port: int) -> list[str]:
    """Return the server's command line. The batch weight becomes `--num-gpu-blocks-override`: vLLM
    admits requests until its KV blocks, each of some tokens, are used up."""
    blocks = n_blocks(spec, settings)
    switches = ["skip-tokenizer-init"]
    arguments = {
        "model": str(spec.model),
        "served-model-name": MODEL_NAME,
        "host": "127.0.0.1",
        "port": str(port),
        "load-format": spec.load_format,
        "dtype": settings.dtype,
        "seed": str(spec.seed),
        "max-model-len": str(spec.max_request_tokens),
        "max-num-seqs": str(settings.max_num_seqs),
        "block-size": str(settings.block_size_tokens),
        "num-gpu-blocks-override": str(blocks),
    }
    if spec.devices.kind == "cpu":
        # A CPU has no memory of its own to profile: state the size of the KV cache.
        kv_bytes = blocks * settings.block_size_tokens * spec.kv_bytes_per_token
        arguments["kv-cache-memory-bytes"] = str(kv_bytes)
        # As on a GPU: no further process for the only worker, whose start takes 8 s. The class in
        # place of its short name `uni`, for which vLLM's CPU build takes `mp`.
        arguments["distributed-executor-backend"] = _IN_ENGINE_PROCESS
        switches.append("enforce-eager")
    else:
        share = settings.memory_utilization * spec.memory_share
        arguments["gpu-memory-utilization"] = f"{share:.6g}"
        arguments["tensor-parallel-size"] = str(spec.devices.n_gpus)
    # Prompts are token ids, unique per request: no tokenizer, no prefix cache to warm.
    switches.append("no-enable-prefix-caching")
    options = [part for name, value in arguments.items() for part in (f"--{name}", value)]
    options += [f"--{switch}" for switch in switches]
    program = [settings.python, "-m", "vllm.entrypoints.openai.api_server"]
    return [*program, *options, *settings.extra_arguments]


def environment(spec: ServerSpec, api_key: str, compile_cache: str | None = None) -> dict[str, str]:
    """Return the server's environment: its devices, scratch and loopback only, no telemetry.

    Makes the folders of the scratch that a server writes to, and links `compile_cache` there: a
    folder in which servers share what they compile.
    """
    values = {name: it for name, it in os.environ.items() if name not in _ENVIRONMENT["without"]}
    values |= {"VLLM_API_KEY": api_key} | _ENVIRONMENT["with"]
    if spec.scratch:
        for name in ("cache", "tmp", "config"):
            (spec.scratch / name).mkdir(exist_ok=True)
        # vLLM's facts of its model classes take it 10 s or more to compute, so that servers share
        # them; vLLM writes them atomically and checks their hash.
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        shared = Path(os.environ.get("VLLM_CACHE_ROOT") or home / "vllm") / "modelinfos"
        with contextlib.suppress(OSError):  # no home folder, a full disk, or linked already
            shared.mkdir(parents=True, exist_ok=True)
            (spec.scratch / "cache/vllm").mkdir(exist_ok=True)
            (spec.scratch / "cache/vllm" / shared.name).symlink_to(shared)
        if compile_cache is not None:
            compiled = Path(compile_cache).absolute()
            compiled.mkdir(parents=True, exist_ok=True)
            (spec.scratch / "cache/vllm").mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):  # of an earlier start of this cell
                (spec.scratch / "cache/vllm/torch_compile_cache").symlink_to(compiled)
        values |= {it: str(spec.scratch / path) for it, path in _ENVIRONMENT["scratch"].items()}
    if spec.load_format == "dummy":
        values["HF_HUB_OFFLINE"] = "1"
    if spec.devices.kind == "cpu":
        cores = spec.cores or ()
        values |= {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "OMP_NUM_THREADS": str(len(cores)),
            "CUDA_VISIBLE_DEVICES": "",
        }
    else:
        values["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.device_indices))
        # As NVML, which telemetry asks, numbers them.
        values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return values


# A class or function by its module, as in `{"backend": "package.module.function"}`.
_QUALIFIED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def check_extra_arguments(arguments: Sequence[str], file: str | Path) -> list[str]:
    """Check `engine.extra_arguments`; return the ones that let a server run code of others.

    Raises InputError for one that would change what the pipeline itself decides.
    """
    for argument in arguments:
        for name in _names(argument, _INSTEAD):
            option = argument.partition("=")[0]  # a value may be a key
            problem = f"{option!r} sets {name}, which is the pipeline's to set"
            field = "engine.extra_arguments"
            fix = _INSTEAD[name]
            raise InputError(problem, file=file, field=field, fix=fix)
    pairs = zip_longest(arguments, arguments[1:], fillvalue="")
    code = DATA_SHEET["code_options"]
    return [
        argument
        for argument, following in pairs
        if _names(argument, code) or _loads_code(argument, following)
    ]


def _names(argument: str, options: Iterable[str]) -> list[str]:
    """Return the options that `--name=value` may mean: `_` is `-`, and a beginning is enough."""
    match = re.match(r"(--?)([^=.]+)", argument)
    if not match:
        return []
    beginning = match[2].replace("_", "-")
    if match[1] == "-":  # `-tp2` is `-tp 2`
        short = DATA_SHEET["short_options"].items()
        return [name for letters, name in short if re.fullmatch(rf"{letters}\d*", beginning)]
    return [name for name in options if name.startswith(beginning)]


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
    return isinstance(parts, dict) and _has_code(parts)


def _has_code(value: Any, key: str = "") -> bool:
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else ((key, part) for part in value)
        return any(_has_code(part, name) for name, part in parts)
    is_text = isinstance(value, str) and value != ""
    return is_text and (key.endswith("plugin") or bool(_QUALIFIED_NAME.fullmatch(value)))


_TEXTS = {
    name: re.compile("|".join(f"(?:{form})" for form in text) if isinstance(text, list) else text)
    for name, text in DATA_SHEET["log"].items()
}
_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def out_of_memory_sign(text: str) -> str | None:
    """Return the first line that says that memory ran out, None if none does."""
    return next((line for line in _own_lines(text) if _TEXTS["out_of_memory"].search(line)), None)


def killed_sign(text: str) -> str | None:
    """Return the line that says that a process was killed, None if none does."""
    lines = _own_lines(text)
    if killed := next((line for line in lines if _TEXTS["killed"].search(line)), None):
        return killed
    for number, line in enumerate(lines):
        if _TEXTS["died"].search(line):  # it counts if no earlier line says why
            earlier = [text for text in lines[:number] if "WARNING" not in text]
            return None if any(map(_TEXTS["last_words"].search, earlier)) else line
    return None


def is_disk_full(text: str) -> bool:
    """Return whether a file system had no room for the server."""
    return any(_TEXTS["disk_full"].search(line) for line in _own_lines(text))


def _own_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if not _TEXTS["quotes"].search(line)]


def failed_allocation(text: str) -> tuple[int, int | None] | None:
    """Return the bytes that the first failed allocation asked for, and those free, if it says."""
    if needed := _TEXTS["needed_gib"].search(text):
        tried_gib, free_gib = map(float, needed.groups())
        return round(tried_gib * 2**30), round(free_gib * 2**30)
    tried = _TEXTS["tried"].search(text)
    if not tried:
        return None
    free = _TEXTS["free"].search(text[tried.start() :].split("\n", 1)[0])
    return _bytes(tried), _bytes(free) if free else None


def profiled_blocks(text: str) -> int | None:
    """Return the KV blocks that vLLM's profiling would have made, of the worker with the least."""
    pairs = _TEXTS["profiled_blocks"].findall(text)
    numbers = [(int(profiled), int(stated)) for profiled, stated in pairs]
    # Without profiling, on a CPU, vLLM only repeats the number that it was told.
    return min((profiled for profiled, stated in numbers if profiled != stated), default=None)


def _bytes(match: re.Match[str]) -> int:
    amount, unit = (part for part in match.groups() if part is not None)
    return round(float(amount) * _BYTES[unit])

"""The command of a server, in the words of each engine: vLLM, SGLang, TensorRT-LLM."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import as_yaml
from sextant.deploy.settings import ReplicaSettings, Speculation
from sextant.facts.llm import DTYPES

PORT = 8000
"""Where a server listens, whatever its engine's own default is."""
OPTIONS_FOLDER = "/etc/sextant"
"""Where a container has the file of options that TensorRT-LLM reads."""
_OPTIONS_FILE = "trtllm.yaml"


@dataclass(frozen=True, kw_only=True)
class ServerCommand:
    """How a server is started in its container."""

    program: Sequence[str]
    """What is run, before its options."""
    options: Mapping[str, str | None]
    """By name with its hyphens, e.g. `--port`; None: an option without a value."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that it reads, by path in the container."""
    notes: tuple[str, ...] = ()
    """What to know of it."""

    @property
    def option_words(self) -> list[list[str]]:
        """Each option as the words of a command."""
        return [[name] if value is None else [name, value] for name, value in self.options.items()]

    @property
    def arguments(self) -> list[str]:
        """The program and its options, as the words of a command."""
        return [*self.program, *chain(*self.option_words)]


def server_command(settings: ReplicaSettings) -> ServerCommand:
    """Return the command of a server. Raises InputError for what its engine cannot do."""
    write = _COMMANDS.get(settings.engine)
    if write is None:
        fix = f"ask with --engine {', '.join(_COMMANDS)}"
        problem = f"no command is known for the engine {settings.engine}"
        raise InputError(problem, field="--deploy, --engine", fix=fix)
    if settings.gpu_profile.n_nodes > 1:
        name = settings.gpu_profile.gpu_profile_id
        problem = f"a replica on {name} spans {settings.gpu_profile.n_nodes} nodes"
        fix = "name profiles of one node (--gpu-profiles); replicas of several are not written"
        raise InputError(problem, field="--deploy", fix=fix)
    return write(settings)


def _options(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return options that have a value; True stands for an option alone."""
    return {
        f"--{name}": None if value is True else str(value)
        for name, value in options.items()
        if value is not None and value is not False
    }


def _quantization(settings: ReplicaSettings) -> str | None:
    """Return the engine's name for weights that it quantizes itself; None: it does not."""
    precisions = settings.precisions
    is_made = not precisions.is_checkpoint and precisions.is_made_when_served
    return "fp8" if is_made and precisions.weights == "fp8" else None


def _checkpoint_notes(settings: ReplicaSettings, *, makes_fp8: bool = True) -> tuple[str, ...]:
    """Return that another checkpoint is needed; nothing where the engine serves this one so."""
    precisions = settings.precisions
    is_made = precisions.is_made_when_served and (makes_fp8 or precisions.weights != "fp8")
    if precisions.is_checkpoint or is_made:
        return ()
    return (
        f"The answer is for weights in {precisions.weights}; {settings.model} has them in "
        f"{precisions.checkpoint}. Put the name of a checkpoint in {precisions.weights} in its "
        "place.",
    )


def _kv_dtype(settings: ReplicaSettings, fp8: str) -> str:
    """Return the engine's name of the KV cache's precision. InputError: it has none."""
    precision = settings.precisions.kv_cache
    if precision in DTYPES:
        return "auto"
    if precision != "fp8":
        problem = f"no option of {settings.engine} is known for a KV cache in {precision}"
        fix = "ask with --kv-dtype fp8 or bf16"
        raise InputError(problem, field="--deploy, --kv-dtype", fix=fix)
    return fp8


def _vllm(settings: ReplicaSettings) -> ServerCommand:
    """Return vLLM's command. It shares experts out over all GPUs, or over none."""
    n_gpus = settings.gpu_profile.n_gpus
    if settings.expert_parallel not in (1, n_gpus):
        raise _uneven_experts(settings)
    limits = settings.limits
    is_cpu = settings.gpu_profile.gpu.kind == "cpu"
    options = {
        "host": "0.0.0.0",
        "port": PORT,
        "tensor-parallel-size": None if is_cpu else settings.tensor_parallel,
        "data-parallel-size": settings.data_parallel if settings.data_parallel > 1 else None,
        "enable-expert-parallel": settings.expert_parallel > 1,
        "dtype": settings.precisions.dtype,
        "quantization": _quantization(settings),
        "kv-cache-dtype": _kv_dtype(settings, "fp8"),
        "max-model-len": limits.max_model_len,
        "max-num-seqs": limits.max_num_seqs,
        "max-num-batched-tokens": limits.max_num_batched_tokens,
        "gpu-memory-utilization": None if is_cpu else f"{limits.memory_share:.6g}",
        "enforce-eager": settings.is_eager or is_cpu,
        "enable-prefix-caching": settings.has_prefix_caching is True,
        "no-enable-prefix-caching": settings.has_prefix_caching is False,
        "speculative-config": _vllm_speculation(settings.speculation),
    }
    environment = {}
    if is_cpu:
        cache_gib = settings.start_up.memory.kv_cache_gib
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(max(int(cache_gib), 1))
    return ServerCommand(
        program=("vllm", "serve", settings.model),
        options=_options(options),
        environment=environment,
        notes=_checkpoint_notes(settings),
    )


def _vllm_speculation(speculation: Speculation | None) -> str | None:
    """Return vLLM's JSON of how tokens are drafted."""
    if speculation is None:
        return None
    config: dict[str, Any] = {"method": speculation.method.replace("-", "_")}
    if speculation.draft_model is not None:
        config["model"] = speculation.draft_model
    config["num_speculative_tokens"] = speculation.draft_tokens
    if speculation.method == "ngram":
        config["prompt_lookup_max"] = speculation.draft_tokens
    return json.dumps(config)


def _sglang(settings: ReplicaSettings) -> ServerCommand:
    """Return SGLang's command; it counts GPUs, sequences and tokens over all copies."""
    limits = settings.limits
    copies = settings.data_parallel
    options = {
        "model-path": settings.model,
        "host": "0.0.0.0",
        "port": PORT,
        "tp-size": settings.gpu_profile.n_gpus,
        "dp-size": copies if copies > 1 else None,
        "enable-dp-attention": copies > 1,
        "ep-size": settings.expert_parallel if settings.expert_parallel > 1 else None,
        "dtype": settings.precisions.dtype,
        "quantization": _quantization(settings),
        "kv-cache-dtype": _kv_dtype(settings, "fp8_e4m3"),
        "context-length": limits.max_model_len,
        "max-running-requests": copies * limits.max_num_seqs,
        "chunked-prefill-size": copies * limits.max_num_batched_tokens,
        "mem-fraction-static": f"{limits.memory_share:.3f}",
        "disable-cuda-graph": settings.is_eager,
        "disable-radix-cache": settings.has_prefix_caching is False,
        **_sglang_speculation(settings.speculation),
        "enable-metrics": True,
    }
    return ServerCommand(
        program=("python3", "-m", "sglang.launch_server"),
        options=_options(options),
        notes=_checkpoint_notes(settings),
    )


_SGLANG_METHODS = {
    "mtp": "NEXTN",
    "eagle3": "EAGLE3",
    "ngram": "NGRAM",
    "draft-model": "STANDALONE",
}


def _sglang_speculation(speculation: Speculation | None) -> dict[str, Any]:
    """Return SGLang's options of how tokens are drafted: one chain of drafts, no tree."""
    if speculation is None:
        return {}
    options: dict[str, Any] = {
        "speculative-algorithm": _SGLANG_METHODS[speculation.method],
        "speculative-draft-model-path": speculation.draft_model,
        # The token that the LLM itself chose is one of SGLang's draft tokens.
        "speculative-num-draft-tokens": speculation.draft_tokens + 1,
    }
    if speculation.method != "ngram":
        options |= {
            "speculative-num-steps": speculation.draft_tokens,
            "speculative-eagle-topk": 1,
        }
    return options


_TRTLLM_METHODS = {"mtp": "MTP", "eagle3": "Eagle", "ngram": "NGram", "draft-model": "DraftTarget"}


def _trtllm(settings: ReplicaSettings) -> ServerCommand:
    """Return TensorRT-LLM's command; what has no option of its own stands in a file."""
    limits = settings.limits
    path = f"{OPTIONS_FOLDER}/{_OPTIONS_FILE}"
    options = {
        "backend": "pytorch",
        "host": "0.0.0.0",
        "port": PORT,
        "tp_size": settings.gpu_profile.n_gpus,
        "ep_size": settings.expert_parallel if settings.expert_parallel > 1 else None,
        "max_batch_size": limits.max_num_seqs,
        "max_num_tokens": limits.max_num_batched_tokens,
        "max_seq_len": limits.max_model_len,
        "extra_llm_api_options": path,
    }
    content: dict[str, Any] = {
        "dtype": settings.precisions.dtype,
        "kv_cache_config": {
            "dtype": _kv_dtype(settings, "fp8"),
            "enable_block_reuse": settings.has_prefix_caching is not False,
            "free_gpu_memory_fraction": limits.memory_share,
        },
        "enable_chunked_prefill": True,
        "cuda_graph_config": None if settings.is_eager else {"enable_padding": True},
    }
    if settings.data_parallel > 1:
        content["enable_attention_dp"] = True
    if settings.speculation is not None:
        content["speculative_config"] = _trtllm_speculation(settings.speculation)
    return ServerCommand(
        program=("trtllm-serve", settings.model),
        options=_options(options),
        files={path: as_yaml(content)},
        notes=_checkpoint_notes(settings, makes_fp8=False),
    )


def _trtllm_speculation(speculation: Speculation) -> dict[str, Any]:
    """Return TensorRT-LLM's part of a file on how tokens are drafted."""
    config: dict[str, Any] = {"decoding_type": _TRTLLM_METHODS[speculation.method]}
    if speculation.method == "mtp":
        return {**config, "num_nextn_predict_layers": speculation.draft_tokens}
    config["max_draft_len"] = speculation.draft_tokens
    if speculation.draft_model is not None:
        config["speculative_model_dir"] = speculation.draft_model
    return config


def _uneven_experts(settings: ReplicaSettings) -> InputError:
    n = settings.expert_parallel
    problem = f"vLLM shares experts out over all {settings.gpu_profile.n_gpus} GPUs, not over {n}"
    return InputError(problem, field="--deploy, --expert-parallel", fix="give all, or 1")


_COMMANDS: Mapping[str, Callable[[ReplicaSettings], ServerCommand]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
}
ENGINES = (*_COMMANDS,)
"""The engines whose command is known."""

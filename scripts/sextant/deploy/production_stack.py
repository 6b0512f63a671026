"""Helm values of vLLM's production stack (github.com/vllm-project/production-stack)."""

from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import as_yaml
from sextant.deploy.command import PORT
from sextant.deploy.deployment import SHARED_MEMORY_GIB, ReplicaDeployment
from sextant.deploy.gpu_names import PRODUCT_LABEL
from sextant.deploy.kubernetes import (
    SECRET,
    SECRET_KEY,
    has_shared_memory,
    probes,
)

_OWN_OPTIONS = {
    "--tensor-parallel-size": ("tensorParallelSize", int),
    "--dtype": ("dtype", str),
    "--max-model-len": ("maxModelLen", int),
    "--max-num-seqs": ("maxNumSeqs", int),
    "--gpu-memory-utilization": ("gpuMemoryUtilization", float),
}
"""Options that the chart writes itself, with their names in its values."""
_OF_CHART = ("--host", "--port")
_CACHING = ("--enable-prefix-caching", "--no-enable-prefix-caching")


def production_stack_files(deployment: ReplicaDeployment) -> dict[str, str]:
    """Return the values. Raises InputError: the stack serves with vLLM alone."""
    if deployment.settings.engine != "vllm":
        engine = deployment.settings.engine
        problem = f"the production stack is vLLM's, and the answer is for {engine}"
        raise InputError(problem, field="--deploy", fix="use --deploy kubernetes")
    return {"values.yaml": as_yaml({"servingEngineSpec": _engine_spec(deployment)})}


def _engine_spec(deployment: ReplicaDeployment) -> dict[str, Any]:
    of_container = probes(deployment)
    return {
        "enableEngine": True,
        "containerPort": PORT,
        "startupProbe": of_container["startupProbe"],
        "livenessProbe": of_container["livenessProbe"],
        "modelSpec": [_model_spec(deployment)],
    }


def _model_spec(deployment: ReplicaDeployment) -> dict[str, Any]:
    repository, _, tag = deployment.image.rpartition(":")
    profile = deployment.gpu_profile
    is_gpu = profile.gpu.kind != "cpu"
    spec: dict[str, Any] = {
        "name": deployment.name,
        "repository": repository,
        "tag": tag,
        "modelURL": deployment.settings.model,
        "replicaCount": deployment.replicas,
        "requestCPU": deployment.cpus,
        "requestMemory": f"{deployment.host_gib}Gi",
        "requestGPU": profile.n_gpus if is_gpu else 0,
        "vllmConfig": _vllm_config(deployment),
        "hf_token": {"secretName": SECRET, "secretKey": SECRET_KEY},
        "env": [
            {"name": name, "value": value} for name, value in deployment.command.environment.items()
        ],
    }
    resource = deployment.gpu_names.resource
    if resource not in (None, "nvidia.com/gpu"):
        spec["requestGPUType"] = resource
    if has_shared_memory(deployment):
        spec["shmSize"] = f"{SHARED_MEMORY_GIB}Gi"
    if product := deployment.gpu_names.product:
        term = {"key": PRODUCT_LABEL, "operator": "In", "values": [product]}
        spec["nodeSelectorTerms"] = [{"matchExpressions": [term]}]
    if deployment.scaling is not None:
        spec["keda"] = {"enabled": True, **deployment.scaling.spec}
    return spec


def _vllm_config(deployment: ReplicaDeployment) -> dict[str, Any]:
    """Return vLLM's options: the chart's own names, and the others as they are."""
    config: dict[str, Any] = {
        "enablePrefixCaching": deployment.settings.has_prefix_caching is not False
    }
    extra: list[str] = []
    for option, value in deployment.command.options.items():
        if option in _OF_CHART or option in _CACHING:
            continue
        if option in _OWN_OPTIONS and value is not None:
            name, kind = _OWN_OPTIONS[option]
            config[name] = kind(value)
        else:
            extra += [option] if value is None else [option, value]
    return {**config, "extraArgs": extra}

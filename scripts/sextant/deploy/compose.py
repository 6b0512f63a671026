"""A file of Docker Compose: the replicas that one machine has room for."""

from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import as_yaml
from sextant.deploy.command import OPTIONS_FOLDER, PORT
from sextant.deploy.deployment import HEALTH_PATH, SHARED_MEMORY_GIB, ReplicaDeployment
from sextant.deploy.kubernetes import CACHE_FOLDER, has_shared_memory

_PERIOD_S = 10


def compose_files(deployment: ReplicaDeployment) -> dict[str, str]:
    """Return the file. Raises InputError: Compose cannot reserve GPUs of this maker."""
    is_cpu = deployment.gpu_profile.gpu.kind == "cpu"
    if not is_cpu and deployment.gpu_names.resource != "nvidia.com/gpu":
        name = deployment.gpu_profile.gpu.gpu_id
        fix = "use --deploy kubernetes"
        raise InputError(f"Compose reserves no {name}", field="--deploy", fix=fix)
    services = {f"server-{i}": _service(deployment, i) for i in range(n_here(deployment))}
    content: dict[str, Any] = {
        "name": deployment.name,
        "services": services,
        "volumes": {"weights": {}},
    }
    if deployment.command.files:
        [text] = deployment.command.files.values()
        content["configs"] = {"options": {"content": text}}
    return {"compose.yaml": as_yaml(content)}


def n_here(deployment: ReplicaDeployment) -> int:
    """Return the replicas that one machine has room for, at most all."""
    profile = deployment.gpu_profile
    return max(min(deployment.replicas, profile.gpu.n_gpus_per_node // profile.n_gpus), 1)


def _service(deployment: ReplicaDeployment, index: int) -> dict[str, Any]:
    """Return one replica: each has its own GPUs and its own port."""
    program, *arguments = deployment.command.arguments
    check = f"import urllib.request as r; r.urlopen('http://localhost:{PORT}{HEALTH_PATH}')"
    service: dict[str, Any] = {
        "image": deployment.image,
        "entrypoint": [program],
        # A dollar sign would name a variable.
        "command": [argument.replace("$", "$$") for argument in arguments],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **deployment.command.environment},
        "ports": [f"{PORT + index}:{PORT}"],
        "volumes": [f"weights:{CACHE_FOLDER}"],
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "python3", "-c", check],
            "interval": f"{_PERIOD_S}s",
            "start_period": f"{deployment.start_s}s",
        },
    }
    if has_shared_memory(deployment):
        service["shm_size"] = f"{SHARED_MEMORY_GIB}gb"
    if deployment.command.files:
        [path] = deployment.command.files
        assert path.startswith(OPTIONS_FOLDER)
        service["configs"] = [{"source": "options", "target": path}]
    profile = deployment.gpu_profile
    if profile.gpu.kind != "cpu":
        first = index * profile.n_gpus
        device_ids = [str(first + i) for i in range(profile.n_gpus)]
        device = {"driver": "nvidia", "device_ids": device_ids, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service

"""Objects of Kubernetes: a Deployment, a Service, and what they need."""

from pathlib import PurePosixPath
from typing import Any

from sextant.base.sheets import as_yaml
from sextant.deploy.command import OPTIONS_FOLDER, PORT
from sextant.deploy.deployment import HEALTH_PATH, SHARED_MEMORY_GIB, ReplicaDeployment

SECRET = "hugging-face"
"""The secret with a token of Hugging Face, for LLMs that ask for one."""
SECRET_KEY = "token"
CACHE_FOLDER = "/root/.cache/huggingface"
"""Where a container keeps the weights that it downloads."""
PORT_NAME = "http"
_PROBE_PERIOD_S = 10
_UNREADY_AFTER = 3
_DEAD_AFTER = 6
"""A server that does not answer for a minute is started again."""
_DEADLINE_MARGIN_S = 300
"""Beyond its start, for the scheduler and the image."""


def kubernetes_files(deployment: ReplicaDeployment) -> dict[str, str]:
    """Return the files of a deployment on Kubernetes."""
    objects = [kubernetes_deployment(deployment), kubernetes_service(deployment)]
    if deployment.command.files:
        objects.insert(0, options_map(deployment))
    files = {"kubernetes.yaml": as_yaml(*objects)}
    if deployment.scaling is not None:
        files["scaledobject.yaml"] = as_yaml(scaled_object(deployment, deployment.name))
    return files


def kubernetes_deployment(deployment: ReplicaDeployment) -> dict[str, Any]:
    """Return the Deployment (apps/v1). An autoscaler, where there is one, has the replicas."""
    labels = labels_of(deployment)
    replicas = {} if deployment.scaling is not None else {"replicas": deployment.replicas}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment.name, "labels": labels},
        "spec": {
            **replicas,
            "progressDeadlineSeconds": deployment.start_s + _DEADLINE_MARGIN_S,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(deployment, "server")},
        },
    }


def kubernetes_service(deployment: ReplicaDeployment) -> dict[str, Any]:
    """Return the Service (v1) before the replicas."""
    port = {"name": PORT_NAME, "port": PORT, "targetPort": PORT}
    labels = labels_of(deployment)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": deployment.name, "labels": labels},
        "spec": {"selector": labels, "ports": [port]},
    }


def options_map(deployment: ReplicaDeployment) -> dict[str, Any]:
    """Return the ConfigMap (v1) with the files that the server reads."""
    data = {PurePosixPath(path).name: text for path, text in deployment.command.files.items()}
    name = _options_name(deployment)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def scaled_object(deployment: ReplicaDeployment, target: str) -> dict[str, Any]:
    """Return KEDA's ScaledObject that scales a Deployment of this name by the policy."""
    assert deployment.scaling is not None
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": deployment.name},
        "spec": {"scaleTargetRef": {"name": target}, **deployment.scaling.spec},
    }


def labels_of(deployment: ReplicaDeployment) -> dict[str, str]:
    """Return the labels by which a Service finds its replicas."""
    return {"app.kubernetes.io/name": deployment.name}


def pod_spec(deployment: ReplicaDeployment, container_name: str) -> dict[str, Any]:
    """Return the spec of a replica's Pod."""
    volumes: list[dict[str, Any]] = [{"name": "weights", "emptyDir": {}}]
    if has_shared_memory(deployment):
        shared = {"medium": "Memory", "sizeLimit": f"{SHARED_MEMORY_GIB}Gi"}
        volumes.append({"name": "shared-memory", "emptyDir": shared})
    if deployment.command.files:
        volumes.append({"name": "options", "configMap": {"name": _options_name(deployment)}})
    selector = deployment.node_selector
    return {
        **({"nodeSelector": selector} if selector else {}),
        "containers": [_container(deployment, container_name)],
        "volumes": volumes,
    }


def has_shared_memory(deployment: ReplicaDeployment) -> bool:
    """Return whether the processes of a server share memory: those of several GPUs do."""
    return deployment.gpu_profile.n_gpus > 1 and deployment.gpu_profile.gpu.kind != "cpu"


def _container(deployment: ReplicaDeployment, name: str) -> dict[str, Any]:
    mounts = [{"name": "weights", "mountPath": CACHE_FOLDER}]
    if has_shared_memory(deployment):
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    if deployment.command.files:
        mounts.append({"name": "options", "mountPath": OPTIONS_FOLDER})
    program, *arguments = deployment.command.arguments
    return {
        "name": name,
        "image": deployment.image,
        "command": [program],
        "args": arguments,
        "ports": [{"name": PORT_NAME, "containerPort": PORT}],
        "env": _environment(deployment),
        "resources": _resources(deployment),
        **probes(deployment),
        "volumeMounts": mounts,
    }


def _environment(deployment: ReplicaDeployment) -> list[dict[str, Any]]:
    """Return the environment of a container; the token of Hugging Face may be missing."""
    reference = {"name": SECRET, "key": SECRET_KEY, "optional": True}
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}}
    stated = deployment.command.environment.items()
    return [token, *({"name": name, "value": value} for name, value in stated)]


def _resources(deployment: ReplicaDeployment) -> dict[str, Any]:
    requests = {"cpu": str(deployment.cpus), "memory": f"{deployment.host_gib}Gi"}
    resource = deployment.gpu_names.resource
    if resource is None:
        return {"requests": requests}
    gpus = {resource: str(deployment.gpu_profile.n_gpus)}
    return {"requests": {**requests, **gpus}, "limits": gpus}


def probes(deployment: ReplicaDeployment) -> dict[str, Any]:
    """Return the probes of a container: the first one waits as long as a start may take."""
    request = {"httpGet": {"path": HEALTH_PATH, "port": PORT}, "periodSeconds": _PROBE_PERIOD_S}
    tries = -(-deployment.start_s // _PROBE_PERIOD_S)
    return {
        "startupProbe": {**request, "failureThreshold": tries},
        "readinessProbe": {**request, "failureThreshold": _UNREADY_AFTER},
        "livenessProbe": {**request, "failureThreshold": _DEAD_AFTER},
    }


def _options_name(deployment: ReplicaDeployment) -> str:
    return f"{deployment.name}-options"

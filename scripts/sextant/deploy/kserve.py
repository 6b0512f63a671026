"""KServe's InferenceService (serving.kserve.io/v1beta1) with the engine's own container."""

from typing import Any

from sextant.base.sheets import as_yaml
from sextant.deploy.deployment import ReplicaDeployment
from sextant.deploy.kubernetes import options_map, pod_spec, scaled_object

_CONTAINER = "kserve-container"
"""The name by which KServe knows the container that serves."""


def kserve_files(deployment: ReplicaDeployment) -> dict[str, str]:
    """Return the files: as Deployments, so that probes and GPUs are those of any Pod."""
    objects = [_inference_service(deployment)]
    if deployment.command.files:
        objects.insert(0, options_map(deployment))
    files = {"inferenceservice.yaml": as_yaml(*objects)}
    if deployment.scaling is not None:
        target = f"{deployment.name}-predictor"
        files["scaledobject.yaml"] = as_yaml(scaled_object(deployment, target))
    return files


def _inference_service(deployment: ReplicaDeployment) -> dict[str, Any]:
    # Another autoscaler than KServe's own sets the replicas, or none does.
    autoscaler = "none" if deployment.scaling is None else "external"
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": deployment.name,
            "annotations": {
                "serving.kserve.io/deploymentMode": "RawDeployment",
                "serving.kserve.io/autoscalerClass": autoscaler,
            },
        },
        "spec": {
            "predictor": {
                "minReplicas": deployment.replicas,
                "maxReplicas": deployment.replicas,
                **pod_spec(deployment, _CONTAINER),
            }
        },
    }

"""A plan as deployments of vLLM that a person can apply: objects of Kubernetes."""

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

from sextant.answer.fleet.options import read_supply
from sextant.base.sheets import load_sheet, yaml_documents
from sextant.decide.fleet import FleetPlan, Pool, Served
from sextant.experiment.sheets import DemandRow, SupplyRow
from sextant.facts.llm import name_of

IMAGE = "vllm/vllm-openai:v0.24.0"
"""As in workflow/envs/vllm.def."""
PORT = 8000
_START_S = 1800
"""Most seconds until a server has loaded its weights."""
_MAX_NAME = 63
"""Characters of a name in Kubernetes (RFC 1123)."""
_LABEL = "nvidia.com/gpu.product"


def check_sheets(demands: Path, supply: Path) -> None:
    """Check that the sheets of demands and supply say all that deployments need.

    Raises InputError: a pool does not say what Kubernetes calls its devices, a demand not what its
    servers load, or the servers' image does not run on a pool.
    """
    pools, gpus = read_supply(supply)
    for row, pool in zip(load_sheet(supply, SupplyRow), pools, strict=True):
        if "gpu_product" not in row:
            problem = f"Kubernetes has to know the device of pool {row['pool_id']!r}"
            fix = f"write what `kubectl get nodes -L {_LABEL}` shows"
            raise row.error(problem, "gpu_product", fix)
        if not gpus[pool.gpu_id].is_cuda:
            problem = f"servers of {IMAGE} do not run on {pool.gpu_id}: CUDA does not drive it"
            fix = "leave the pool out, or print the plan as text and write its objects yourself"
            raise row.error(problem, "gpu_id", fix)
    for row in load_sheet(demands, DemandRow):
        name = row.get("llm_id") or name_of(Path(row.get("hf_config", "")))
        if "/" not in _model(row.get("model", ""), name):
            problem = f"it is not known what servers of {row['demand_id']!r} load"
            raise row.error(problem, "model", "write a repository of Hugging Face or a folder")


def _model(given: str, llm_id: str) -> str:
    """Return what vLLM loads; ids of shipped LLMs have both parts of a repository's name."""
    return given or llm_id.replace("__", "/")


def as_kubernetes(plan: FleetPlan, slot: int = 0) -> str:
    """Return a Service a demand and a Deployment a demand and pool, for `kubectl apply -f -`.

    They are those of a slot of the day, most devices a replica first. What runs in another slot
    alone has 0 replicas: applied, it stops.
    """
    served = {each.demand.demand_id: each for each in plan.served}
    pools = {use.pool.pool_id: use.pool for use in plan.pools}
    n_replicas: Counter[tuple[str, str]] = Counter()
    for place in plan.placements:
        n_replicas[place.demand_id, place.pool_id] += place.replicas * (place.slot == slot)
    found = sorted(n_replicas.items(), key=lambda each: -served[each[0][0]].n_gpus)
    objects = [_service(name) for name in dict.fromkeys(of for (of, _), _ in found)]
    objects += [_deployment(served[of], pools[on], n) for (of, on), n in found]
    return yaml_documents(objects)


def _service(demand_id: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _name(demand_id)},
        "spec": {
            "selector": {"demand": _name(demand_id)},
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT}],
        },
    }


def _deployment(served: Served, pool: Pool, n_replicas: int) -> dict[str, Any]:
    demand = served.demand
    labels = {"app": "vllm", "demand": _name(demand.demand_id), "pool": _name(pool.pool_id)}
    resource = f"nvidia.com/mig-{pool.mig_profile}" if pool.mig_profile else "nvidia.com/gpu"
    probe = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10}
    # Weights that need a login are downloaded with it.
    login = {"name": "hf-token", "key": "token", "optional": True}
    container = {
        "name": "vllm",
        "image": IMAGE,
        "args": [
            _model(demand.model, demand.llm_id),
            *("--served-model-name", demand.llm_id),
            *("--tensor-parallel-size", str(served.n_gpus)),
            *("--max-model-len", "auto"),  # the longest that memory holds
        ],
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": login}}],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {resource: served.n_gpus}},
        "startupProbe": {**probe, "failureThreshold": _START_S // 10},
        "readinessProbe": probe,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod: dict[str, Any] = {
        "nodeSelector": {_LABEL: pool.gpu_product},
        "containers": [container],
        # Tensor parallel processes share more memory than the 64 MiB that a container has.
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    if demand.least_replicas > 1:
        apart = {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"demand": labels["demand"]}},
        }
        pod["topologySpreadConstraints"] = [apart]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": f"{labels['demand']}--{labels['pool']}",
            "labels": labels,
            "annotations": {"team": demand.team, "demand": demand.demand_id},
        },
        "spec": {
            "replicas": n_replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _name(given_id: str) -> str:
    """Return the id where it is a name in Kubernetes, else what is left of it and a digest.

    No name has two dashes in a row.
    """
    name = re.sub(r"[^a-z0-9]+", "-", given_id.lower()).strip("-")
    if name == given_id and name[0].isalpha() and len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(given_id.encode()).hexdigest()[:8]
    return f"d-{name}"[: _MAX_NAME - 9].rstrip("-") + f"-{digest}"

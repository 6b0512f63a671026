"""A deployment: replicas of one server, their container, and what else starts them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sextant.base.errors import InputError
from sextant.deploy.command import PORT, ServerCommand, server_command
from sextant.deploy.gpu_names import PRODUCT_LABEL, GPUNames, gpu_names
from sextant.deploy.settings import DRAFT_PLACE, MODEL_PLACE, ReplicaSettings
from sextant.facts.engine import containers_of
from sextant.facts.gpu import GPUProfile

HEALTH_PATH = "/health"
"""Answers once a server serves: vLLM, SGLang and TensorRT-LLM alike."""
HOST_GIB_PER_GPU = 16
"""Memory of the host that a container asks for, for each GPU."""
SHARED_MEMORY_GIB = 8
"""Memory that the processes of a server on several GPUs share."""
_RELEASE = re.compile(r"\d+\.\d+\.\d+((\.post|rc)\d+)*")
_LONGEST_NAME = 50
"""Letters of a name: Kubernetes takes 63, and platforms add to it."""
_START_MARGIN = 2.0
"""A start may take so many times as long as 19 in 20 do: downloads differ."""


@dataclass(frozen=True, kw_only=True)
class ScalingSpec:
    """How a policy adds and removes replicas: the spec of a ScaledObject, without its target."""

    spec: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReplicaDeployment:
    """Replicas of a server, as an answer recommends them."""

    settings: ReplicaSettings
    command: ServerCommand
    image: str
    """The container, with its tag."""
    replicas: int
    scaling: ScalingSpec | None = None
    """None: the replicas stay."""
    owner: str = ""
    """Whose it is: the team of a fleet."""
    title: str = ""
    """What it serves: a demand of a fleet; "": the LLM."""

    @property
    def name(self) -> str:
        """Its name, as Kubernetes allows it."""
        return kubernetes_name(self.title or self.settings.llm_id)

    @property
    def gpu_profile(self) -> GPUProfile:
        """What a replica runs on."""
        return self.settings.gpu_profile

    @property
    def gpu_names(self) -> GPUNames:
        """What Kubernetes calls its GPUs."""
        return gpu_names(self.gpu_profile.gpu)

    @property
    def node_selector(self) -> dict[str, str]:
        """The nodes that have these GPUs; empty: no label is known."""
        product = self.gpu_names.product
        return {} if product is None else {PRODUCT_LABEL: product}

    @property
    def cpus(self) -> int:
        """Cores of the host: of a server's front end and engine, and one of each worker."""
        profile = self.gpu_profile
        if profile.gpu.kind == "cpu":
            return profile.n_gpus
        return 1 + self.settings.data_parallel + profile.n_gpus

    @property
    def host_gib(self) -> int:
        """Memory of the host in GiB."""
        profile = self.gpu_profile
        if profile.gpu.kind == "cpu":
            return math.ceil(profile.gpu.memory_gib)
        return HOST_GIB_PER_GPU * profile.n_gpus

    @property
    def start_s(self) -> int:
        """How long a start may take before it counts as failed."""
        return math.ceil(_START_MARGIN * self.settings.startup.facts()["startup_hi_s"])

    @property
    def notes(self) -> list[str]:
        """What to fill in, and what to know before it is started."""
        settings = self.settings
        notes = [*self.command.notes]
        if not settings.is_model_known:
            notes.insert(
                0,
                f"Put the LLM's name on Hugging Face, or its path, in place of {MODEL_PLACE}: "
                f"that of {settings.llm_id} is not known.",
            )
        speculation = settings.speculation
        if speculation is not None and speculation.draft_model == DRAFT_PLACE:
            notes.append(
                f"Put the name of what drafts ({speculation.method}) in place of {DRAFT_PLACE}."
            )
        released = self.image.rpartition(":")[2].removeprefix("v")
        if settings.version and released != settings.version:
            notes.append(
                f"The answer rests on {settings.engine} {settings.version}, which has no container "
                f"of that name: {self.image} is the nearest that is known."
            )
        return notes

    def facts(self) -> dict[str, Any]:
        """Return its entries in the JSON of an answer."""
        resource = self.gpu_names.resource
        n_gpus = self.gpu_profile.n_gpus
        gpus = {resource: n_gpus} if resource else {}
        return {
            "model": self.settings.model,
            "command": self.command.arguments,
            "environment": dict(self.command.environment),
            "files": dict(self.command.files),
            "image": self.image,
            "ports": [PORT],
            "health_path": HEALTH_PATH,
            "replicas": self.replicas,
            "resources": {"cpu": self.cpus, "memory_gib": self.host_gib, **gpus},
            "node_selector": self.node_selector,
            "start_s": self.start_s,
            "notes": self.notes,
        }


def deployment_of(
    settings: ReplicaSettings, replicas: int, scaling: ScalingSpec | None = None
) -> ReplicaDeployment:
    """Return replicas of a server. Raises InputError where its engine or GPUs have no container."""
    return ReplicaDeployment(
        settings=settings,
        command=server_command(settings),
        image=_image_of(settings),
        replicas=replicas,
        scaling=scaling,
    )


def deployment_facts(find: Callable[[], Sequence[ReplicaDeployment]]) -> dict[str, Any]:
    """Return the entries of the deployment that a function finds, or why it finds none."""
    try:
        return next((deployment.facts() for deployment in find()), {})
    except InputError as error:
        return {"command": None, "image": None, "reason": error.problem}


def _image_of(settings: ReplicaSettings) -> str:
    """Return the container of the engine's version for the GPUs, with its tag."""
    containers = containers_of(settings.engine)
    gpu = settings.gpu_profile.gpu
    maker = "cpu" if gpu.kind == "cpu" else gpu_names(gpu).maker
    image = None if containers is None or maker is None else containers.images.get(maker)
    if containers is None or image is None:
        problem = f"no container of {settings.engine} is known for {gpu.gpu_id}"
        fix = "name other GPU profiles (--gpu-profiles), or another engine (--engine)"
        raise InputError(problem, field="--deploy", fix=fix)
    is_released = _RELEASE.fullmatch(settings.version)
    version = settings.version if is_released else containers.as_of
    return f"{image}:{containers.tag.format(version=version)}"


def kubernetes_name(name: str) -> str:
    """Return a name in lower case, with hyphens in place of what Kubernetes does not allow.

    Names of Services begin with a letter.
    """
    hyphened = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not hyphened[:1].isalpha():
        hyphened = f"llm-{hyphened}".rstrip("-")
    return hyphened[:_LONGEST_NAME].rstrip("-")

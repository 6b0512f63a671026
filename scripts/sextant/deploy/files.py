"""The files of deployments, by platform."""

import shlex
from collections.abc import Callable, Mapping, Sequence

from sextant.base.errors import InputError
from sextant.base.sheets import file_name
from sextant.deploy.command import OPTIONS_FOLDER, PORT
from sextant.deploy.compose import compose_files, n_here
from sextant.deploy.deployment import ReplicaDeployment
from sextant.deploy.kserve import kserve_files
from sextant.deploy.kubernetes import CACHE_FOLDER, SECRET, SECRET_KEY, kubernetes_files
from sextant.deploy.production_stack import production_stack_files
from sextant.deploy.targets import TARGETS, Target
from sextant.pages.words import plural

_GUIDE = "README.md"


def deployment_files(deployments: Sequence[ReplicaDeployment], target: Target) -> dict[str, str]:
    """Return the files of deployments, by name; several lie in a folder of their team and demand.

    Raises:
        InputError: there is none, the platform is unknown, or cannot do what one needs.
    """
    if target not in TARGETS:
        fix = f"use one of {', '.join(TARGETS)}"
        raise InputError(f"unknown platform {target!r}", field="--deploy", fix=fix)
    if not deployments:
        fix = "ask for looser limits, or name other GPU profiles"
        raise InputError("nothing is recommended to deploy", field="--deploy", fix=fix)
    files: dict[str, str] = {}
    for deployment in deployments:
        parts = [file_name(part) for part in (deployment.owner, deployment.title) if part]
        folder = "".join(f"{part}/" for part in parts)
        written = _RENDERERS[target](deployment)
        written[_GUIDE] = _guide(deployment, target)
        files |= {f"{folder}{name}": text for name, text in written.items()}
    return files


def _command_files(engine: str) -> Callable[[ReplicaDeployment], dict[str, str]]:
    """Return what writes the command of an engine as a shell script."""

    def write(deployment: ReplicaDeployment) -> dict[str, str]:
        if deployment.settings.engine != engine:
            used = deployment.settings.engine
            fix = f"use --deploy {used}, or ask with --engine {engine}"
            raise InputError(f"the answer is for {used}", field="--deploy", fix=fix)
        environment = [
            f"export {name}={shlex.quote(value)}"
            for name, value in deployment.command.environment.items()
        ]
        words = [deployment.command.program, *deployment.command.option_words]
        command = " \\\n    ".join(map(shlex.join, words))
        lines = ["#!/bin/sh", "set -eu", *environment, f"exec {command}", ""]
        options = {
            path.removeprefix(f"{OPTIONS_FOLDER}/"): text
            for path, text in deployment.command.files.items()
        }
        return {"serve.sh": "\n".join(lines), **options}

    return write


def _guide(deployment: ReplicaDeployment, target: Target) -> str:
    """Return how to start it, and what to fill in, as a page of Markdown."""
    settings = deployment.settings
    n = plural(deployment.replicas, "replica")
    lines = [
        f"# {deployment.title or settings.llm_id}",
        "",
        f"{n} × {settings.gpu_profile.gpu_profile_id}, served by {deployment.image}.",
        "",
        *_start_lines(deployment, target),
    ]
    if notes := [*deployment.notes, *_platform_notes(deployment, target)]:
        lines += ["", "## Before you start it", "", *(f"- {note}" for note in notes)]
    return "\n".join([*lines, ""])


def _start_lines(deployment: ReplicaDeployment, target: Target) -> list[str]:
    """Return the commands that start it."""
    secret = f"kubectl create secret generic {SECRET} --from-literal={SECRET_KEY}=$HF_TOKEN"
    if target != "production-stack":  # whose chart needs it
        secret += "    # for LLMs that ask for a token"
    scaled = ["kubectl apply -f scaledobject.yaml"] if deployment.scaling is not None else []
    commands = {
        "compose": ["docker compose up -d"],
        "kubernetes": [secret, "kubectl apply -f kubernetes.yaml", *scaled],
        "kserve": [secret, "kubectl apply -f inferenceservice.yaml", *scaled],
        "production-stack": [
            secret,
            "helm repo add vllm https://vllm-project.github.io/production-stack",
            f"helm install {deployment.name} vllm/vllm-stack -f values.yaml",
        ],
    }
    # A file that the server reads lies where the container has it.
    here = [] if deployment.command.files else ["sh serve.sh    # or in its container:"]
    run = [*here, *_docker_lines(deployment)]
    return ["```", *commands.get(target, run), "```"]


def _docker_lines(deployment: ReplicaDeployment) -> list[str]:
    """Return the command that runs the script in the container."""
    gpus = "" if deployment.gpu_profile.gpu.kind == "cpu" else "--gpus all "
    if deployment.gpu_names.maker == "amd":
        gpus = "--device /dev/kfd --device /dev/dri --group-add video "
    mounts = f"-v $PWD:{OPTIONS_FOLDER}:ro -v $HOME/.cache/huggingface:{CACHE_FOLDER}"
    return [
        f"docker run --rm --ipc host {gpus}-p {PORT}:{PORT} -e HF_TOKEN {mounts} \\",
        f"    --entrypoint sh {deployment.image} {OPTIONS_FOLDER}/serve.sh",
    ]


def _platform_notes(deployment: ReplicaDeployment, target: Target) -> list[str]:
    """Return what to know of a platform."""
    notes = []
    if target in ("kubernetes", "kserve", "production-stack"):
        if not deployment.node_selector and deployment.gpu_profile.gpu.kind != "cpu":
            notes.append(
                f"No label of nodes with {deployment.gpu_profile.gpu.gpu_id} is known: the files "
                "select none. Add a node selector where the cluster has other GPUs, too."
            )
        if target != "production-stack":
            notes.append("Weights are downloaded by each replica: a volume of your own saves that.")
        if deployment.scaling is not None:
            notes.append("Put the address of your Prometheus in the place of serverAddress.")
    elif target == "compose":
        n = n_here(deployment)
        if n < deployment.replicas:
            notes.append(
                f"One machine has room for {n} of the {deployment.replicas} replicas: start the "
                f"file on {-(-deployment.replicas // n)} machines."
            )
        if n > 1:
            notes.append(
                f"The replicas listen on the ports {PORT} to {PORT + n - 1}: put a load balancer "
                "before them."
            )
    elif deployment.replicas > 1:
        notes.append(f"Start it {deployment.replicas} times, and put a load balancer before them.")
    return notes


_RENDERERS: Mapping[Target, Callable[[ReplicaDeployment], dict[str, str]]] = {
    "vllm": _command_files("vllm"),
    "sglang": _command_files("sglang"),
    "trtllm": _command_files("trtllm"),
    "compose": compose_files,
    "kubernetes": kubernetes_files,
    "production-stack": production_stack_files,
    "kserve": kserve_files,
}

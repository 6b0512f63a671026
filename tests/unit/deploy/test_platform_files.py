"""The files of each platform, by the platforms' own schemas (tests/data/schemas)."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deployments import EXPERTS, LLAMA, settings_on
from sextant.base.errors import InputError
from sextant.deploy.deployment import ReplicaDeployment, ScalingSpec, deployment_of
from sextant.deploy.files import deployment_files
from sextant.deploy.targets import TARGETS
from support import ROOT

SCHEMAS = ROOT / "tests" / "data" / "schemas"
POLICY = {
    "minReplicaCount": 1,
    "maxReplicaCount": 4,
    "pollingInterval": 15,
    "cooldownPeriod": 300,
    "triggers": [
        {
            "type": "prometheus",
            "metricType": "AverageValue",
            "metadata": {"serverAddress": "http://p", "query": "sum(x)", "threshold": "5"},
        }
    ],
}


def check(content: Any, name: str, definition: str | None = None) -> None:
    """Raise ValidationError unless the content is what a schema, or a kind of it, says."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    if definition is not None:
        schema = {**schema["kinds"][definition], "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(content)


def check_kubernetes(text: str) -> list[dict[str, Any]]:
    objects = [*yaml.safe_load_all(text)]
    for content in objects:
        check(content, "kubernetes", content["kind"])
    return objects


def deployment(profile: str = "2xH100-80GB", config: Path = LLAMA, **options) -> ReplicaDeployment:
    scaling = options.pop("scaling", None)
    return deployment_of(settings_on(profile, config, **options), 3, scaling)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_objects_of_kubernetes_are_what_its_api_takes(engine: str) -> None:
    of = deployment(engine=engine)
    files = deployment_files([of], "kubernetes")
    objects = {content["kind"]: content for content in check_kubernetes(files["kubernetes.yaml"])}
    assert ("ConfigMap" in objects) == (engine == "trtllm")
    spec = objects["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 3
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert [*container["command"], *container["args"]] == of.command.arguments
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert objects["Service"]["spec"]["selector"] == spec["selector"]["matchLabels"]


def test_the_first_probe_waits_as_long_as_a_start_may_take() -> None:
    of = deployment()
    text = deployment_files([of], "kubernetes")["kubernetes.yaml"]
    spec = next(yaml.safe_load_all(text))["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= of.start_s
    assert of.start_s > of.settings.startup.facts()["startup_hi_s"]
    assert spec["progressDeadlineSeconds"] > of.start_s


def test_a_policy_scales_the_deployment_in_place_of_a_number() -> None:
    of = deployment(scaling=ScalingSpec(spec=POLICY))
    for target, name in (("kubernetes", of.name), ("kserve", f"{of.name}-predictor")):
        files = deployment_files([of], target)
        scaled = yaml.safe_load(files["scaledobject.yaml"])
        check(scaled, "keda")
        assert scaled["spec"]["scaleTargetRef"]["name"] == name
    values = yaml.safe_load(deployment_files([of], "production-stack")["values.yaml"])
    assert values["servingEngineSpec"]["modelSpec"][0]["keda"]["enabled"]


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_an_inference_service_is_what_kserve_takes(engine: str) -> None:
    text = deployment_files([deployment(engine=engine)], "kserve")["inferenceservice.yaml"]
    *maps, service = yaml.safe_load_all(text)
    check(service, "kserve")
    for content in maps:
        check(content, "kubernetes", "ConfigMap")
    predictor = service["spec"]["predictor"]
    assert predictor["minReplicas"] == predictor["maxReplicas"] == 3


def test_values_are_what_the_chart_of_the_production_stack_reads() -> None:
    of = deployment(speculative="ngram", draft_tokens=2, acceptance=0.5, kv_dtype="fp8")
    values = yaml.safe_load(deployment_files([of], "production-stack")["values.yaml"])
    check(values, "production_stack")
    (model,) = values["servingEngineSpec"]["modelSpec"]
    assert (model["repository"], model["tag"]) == ("vllm/vllm-openai", "v0.19.0")
    assert (model["replicaCount"], model["requestGPU"]) == (3, 2)
    config = model["vllmConfig"]
    assert config["tensorParallelSize"] == 2
    # What the chart has no name for is stated as it is.
    extra = config["extraArgs"]
    assert extra[extra.index("--kv-cache-dtype") + 1] == "fp8"
    assert json.loads(extra[extra.index("--speculative-config") + 1])["method"] == "ngram"
    with pytest.raises(InputError, match="the production stack is vLLM's"):
        deployment_files([deployment(engine="sglang")], "production-stack")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_file_of_compose_has_the_replicas_of_one_machine(engine: str, tmp_path) -> None:
    of = deployment("4xH100-80GB", engine=engine)
    files = deployment_files([of], "compose")
    content = yaml.safe_load(files["compose.yaml"])
    check(content, "compose")
    services = content["services"]
    assert len(services) == 2  # of 8 GPUs
    devices = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for service in services.values()
    ]
    assert devices == [["0", "1", "2", "3"], ["4", "5", "6", "7"]]
    assert "on 2 machines" in files["README.md"]
    if engine == "trtllm":
        assert "content: |\n" in files["compose.yaml"]
    # The command of Docker Compose, where it is there, reads it, too.
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], check=False).returncode:
        return
    path = tmp_path / "compose.yaml"
    path.write_text(files["compose.yaml"])
    subprocess.run([docker, "compose", "-f", str(path), "config", "--quiet"], check=True)


def test_a_script_starts_the_command(tmp_path) -> None:
    of = deployment(speculative="ngram", draft_tokens=2, acceptance=0.5)
    script = tmp_path / "serve.sh"
    script.write_text(deployment_files([of], "vllm")["serve.sh"])
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == of.command.arguments[1:]


def test_the_command_alone_is_that_of_the_answers_engine() -> None:
    with pytest.raises(InputError, match=r"the answer is for sglang\. Fix: use --deploy sglang"):
        deployment_files([deployment(engine="sglang")], "vllm")


def test_gpus_of_another_maker_have_another_container_and_resource() -> None:
    of = deployment("1xMI300X-192GB")
    assert of.image.startswith("vllm/vllm-openai-rocm:v")
    text = deployment_files([of], "kubernetes")
    (server, _) = check_kubernetes(text["kubernetes.yaml"])
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert "the files select none" in text["README.md"]
    with pytest.raises(InputError, match="Compose reserves no MI300X"):
        deployment_files([of], "compose")


def test_nothing_and_unknown_platforms_are_refused() -> None:
    with pytest.raises(InputError, match="nothing is recommended to deploy"):
        deployment_files([], "kubernetes")
    with pytest.raises(InputError, match="unknown platform 'nomad'"):
        deployment_files([deployment()], "nomad")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
def test_no_container_is_the_latest_and_what_to_fill_in_is_said(target: str, tmp_path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(EXPERTS.read_text())
    engine = target if target in ("sglang", "trtllm") else "vllm"
    files = deployment_files([deployment(config=path, engine=engine)], target)  # type: ignore[arg-type]
    text = "".join(files.values())
    assert "latest" not in text
    assert "FILL-IN-THE-MODEL" in files["README.md"] and "&id" not in text

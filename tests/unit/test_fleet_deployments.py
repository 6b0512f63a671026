"""A plan as deployments: objects of Kubernetes that can be applied."""

from dataclasses import replace

import jsonschema
import pytest
import yaml

from sextant.answer.fleet.deployments import IMAGE, as_kubernetes
from sextant.decide.fleet import Demand, FleetPlan, Placement, Pool, PoolUse, Served
from sextant.facts.slo import SLO
from support import ROOT

SCHEMA = yaml.safe_load((ROOT / "tests/kubernetes/objects.schema.yaml").read_text())
H100 = Pool("h100", "H100-80GB", 2, 8, gpu_product="NVIDIA-H100-80GB-HBM3")
MIG = Pool("mig", "A100-40GB", 1, 7, gpu_product="NVIDIA-A100-SXM4-40GB")
MIG = replace(MIG, mig_profile="1g.5gb")


def demand(name: str, llm_id: str = "org__llm") -> Demand:
    return Demand(name, "team", llm_id, SLO("s", itl_ms=50, percentile=50, users=9))


def served(name: str, n_gpus: int, *replicas: int) -> Served:
    return Served(demand(name), f"{n_gpus}xH100-80GB", n_gpus, replicas, 0.95, 1.0)


def plan_of(pools, choices, placements) -> FleetPlan:
    n_slots = len(choices[0].replicas)
    uses = [PoolUse(pool, (1,) * n_slots, (2,) * n_slots, 1.0, 0.0) for pool in pools]
    return FleetPlan(tuple(choices), (), tuple(placements), tuple(uses), 1.0, 1.0, 2, 0.9, 0.9)


@pytest.fixture
def plan() -> FleetPlan:
    """Two demands; one of them on two pools, and with another number of replicas at night."""
    chat, code = served("chat", 1, 3, 1), served("Code & más", 2, 2, 2)
    places = [
        Placement(0, "h100", 0, "chat", "1xH100-80GB", 1),
        Placement(0, "h100", 1, "chat", "1xH100-80GB", 1),
        Placement(0, "mig", 0, "chat", "1xH100-80GB", 1),
        Placement(1, "h100", 0, "chat", "1xH100-80GB", 1),
        *(Placement(slot, "h100", 0, "Code & más", "2xH100-80GB", 2) for slot in (0, 1)),
    ]
    return plan_of([H100, MIG], [chat, code], places)


def objects(text: str) -> list[dict]:
    assert "&id" not in text
    found = list(yaml.safe_load_all(text))
    for each in found:
        jsonschema.validate(each, SCHEMA)
    return found


def test_every_object_is_what_kubernetes_accepts(plan) -> None:
    found = objects(as_kubernetes(plan))
    assert [each["kind"] for each in found] == ["Service"] * 2 + ["Deployment"] * 3
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(set(names)) == len(names)


def test_replicas_for_availability_are_spread_over_nodes_by_kubernetes_too() -> None:
    one = served("chat", 1, 2)
    for least in (1, 2):
        asked = replace(one, demand=replace(one.demand, least_replicas=least))
        places = [Placement(0, "h100", node, "chat", "1xH100-80GB", 1) for node in (0, 1)]
        *_, made = objects(as_kubernetes(plan_of([H100], [asked], places)))
        spread = made["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
        selected = [each["labelSelector"]["matchLabels"] for each in spread]
        assert selected == [{"demand": "chat"}] * (least > 1)


def test_a_deployment_asks_for_the_devices_and_nodes_of_the_plan(plan) -> None:
    _, _, code, chat, chat_on_mig = objects(as_kubernetes(plan))
    assert (code["spec"]["replicas"], chat["spec"]["replicas"]) == (2, 2)
    pod = code["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert container["args"][:1] == ["org/llm"]
    place = container["args"].index("--tensor-parallel-size")
    assert container["args"][place + 1] == "2"
    (mig,) = chat_on_mig["spec"]["template"]["spec"]["containers"]
    assert mig["resources"]["limits"] == {"nvidia.com/mig-1g.5gb": 1}
    assert code["metadata"]["annotations"]["demand"] == "Code & más"


def test_a_service_selects_the_pods_of_all_pools_of_its_demand_and_no_others(plan) -> None:
    _, of_chat, code, *chats = objects(as_kubernetes(plan))
    wanted = of_chat["spec"]["selector"].items()
    of = [wanted <= each["spec"]["template"]["metadata"]["labels"].items() for each in chats]
    assert of == [True, True]
    assert not wanted <= code["spec"]["template"]["metadata"]["labels"].items()


def test_the_image_is_that_of_the_benchmarks() -> None:
    assert f"From: {IMAGE}\n" in (ROOT / "workflow/envs/vllm.def").read_text()

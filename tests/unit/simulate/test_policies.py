"""Policies of an autoscaler's own files, and what `capacity` and `simulate` make of them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from command import sextant
from sextant.base.errors import InputError
from sextant.base.sheets import write_yaml
from sextant.capacity.manifests import RayConfig, ScaledObject, manifest_of
from sextant.capacity.policies import read_policy
from sextant.simulate.scaling import Direction, Reactive, Step, Timeline, Trigger

WAITING = "sum(vllm:num_requests_waiting)"
KEDA = f"""\
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {{name: chat}}
spec:
  scaleTargetRef: {{name: chat}}
  maxReplicaCount: 8
  cooldownPeriod: 360
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleDown:
          stabilizationWindowSeconds: 120
          policies: [{{type: Pods, value: 2, periodSeconds: 60}}]
  triggers:
  - type: prometheus
    metadata:
      serverAddress: http://prometheus
      query: {WAITING}
      threshold: '5'
"""
HPA = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: chat}
spec:
  minReplicas: 2
  maxReplicas: 6
  metrics:
  - type: Pods
    pods:
      metric: {name: vllm:num_requests_running}
      target: {type: AverageValue, averageValue: 1500m}
  - type: External
    external:
      metric: {name: vllm_time_to_first_token_seconds}
      target: {type: Value, value: '2'}
"""
RAY = """\
applications:
- name: llm
  deployments:
  - name: vllm
    autoscaling_config:
      min_replicas: 1
      max_replicas: 4
      target_ongoing_requests: 12
      upscale_delay_s: 20
"""


def written(folder: Path, text: str, name: str = "policy.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def keda(folder: Path, query: str) -> Reactive:
    policy = read_policy(written(folder, KEDA.replace(WAITING, query)))
    assert isinstance(policy, Reactive)
    return policy


def test_a_scaled_object_is_read_with_kedas_defaults(tmp_path):
    found = keda(tmp_path, 'sum(vllm:num_requests_waiting{namespace="a/b"})')
    how = {"cooldown_s": 360.0, "down": Direction(120.0, (Step("Pods", 2.0, 60.0),))}
    trigger = Trigger("requests_waiting", 5.0, labels=('namespace="a/b"',))
    assert found == Reactive((trigger,), most=8, least=0, poll_s=30.0, **how)


@pytest.mark.parametrize(
    ("query", "trigger"),
    [
        (f"sum(vllm:num_requests_running) + {WAITING}", {"metric": "requests_in_flight"}),
        ("avg(vllm:kv_cache_usage_perc)", {"metric": "kv_used_fraction", "aggregate": "mean"}),
        (
            'sum(vllm:num_requests_waiting{m="x"}) + sum(avg_over_time('
            'vllm:num_requests_running{m="x",n=~"a|b"}[90s]))',
            {
                "metric": "requests_in_flight",
                "window_s": 90.0,
                "labels": ('m="x",n=~"a|b"', 'm="x"'),
            },
        ),
        (
            "histogram_quantile(0.95, rate(vllm:time_to_first_token_seconds_bucket[2m]))",
            {"metric": "ttft_s", "window_s": 120.0, "share": 0.95},
        ),
        (
            "sum(rate(vllm:request_success_total[30s]))",
            {"metric": "request_rate_rps", "window_s": 30.0},
        ),
        ("vllm:generation_tokens_total", {"metric": "throughput_tok_s", "window_s": 60.0}),
    ],
)
def test_a_query_names_a_metric_of_vllm(tmp_path, query, trigger):
    assert keda(tmp_path, query).triggers == (Trigger(**trigger, target=5.0),)


def test_a_horizontal_pod_autoscaler_and_a_config_of_ray_serve_are_read(tmp_path):
    found = read_policy(written(tmp_path, HPA))
    first = Trigger("requests_running", 1.5)
    second = Trigger("ttft_s", 2.0, is_average=False, window_s=60.0)
    assert found == Reactive((first, second), most=6, least=2, cooldown_s=0.0)
    how = {
        "period_s": 10.0,
        "tolerance": 0.0,
        "up": Direction(20.0),
        "down": Direction(600.0),
    }
    trigger = Trigger("requests_in_flight", 12.0, window_s=30.0)
    ray = Reactive((trigger,), most=4, least=1, **how, cooldown_s=600.0)
    assert read_policy(written(tmp_path, RAY)) == ray


LABELS = 'namespace="a/b",model_name="org/name"'


@pytest.mark.parametrize(
    "trigger",
    [
        Trigger("requests_in_flight", 16.5),
        Trigger("requests_in_flight", 16.5, labels=(LABELS, 'namespace="a/b"')),
        Trigger("requests_in_flight", 3.0, aggregate="max", labels=(LABELS, LABELS)),
        Trigger("requests_waiting", 2.0, window_s=30.0, labels=(LABELS,)),
        Trigger("kv_used_fraction", 0.7125, is_average=False, aggregate="mean"),
        Trigger("kv_used_fraction", 0.5, is_average=False, aggregate="mean", window_s=1.5),
        Trigger("ttft_s", 0.8, is_average=False, window_s=300.0, share=0.95, labels=(LABELS,)),
        Trigger("request_rate_rps", 3.25, window_s=30.0, labels=(LABELS,)),
        Trigger("throughput_tok_s", 1234.0, window_s=7200.0),
    ],
)
def test_what_is_written_is_read_again(tmp_path, trigger):
    down = Direction(600.0, (Step("Pods", 1, 60),))
    policy = Reactive((trigger,), most=9, least=2, down=down)
    written_policy = ScaledObject("meta-llama__Llama-3.1-8B", policy)
    assert written_policy.to_dict()["metadata"]["name"] == "meta-llama-llama-3-1-8b"
    for content in (written_policy.to_dict(), written_policy.stack_values()):
        path = tmp_path / "out.yaml"
        write_yaml(path, content)
        assert read_policy(path) == policy


def test_a_policy_of_ray_serve_is_written_as_one_of_ray_serve(tmp_path):
    policy = read_policy(written(tmp_path, RAY))
    assert isinstance(policy, Reactive)
    fast = replace(policy, period_s=0.5, least=0)
    manifest = manifest_of("llm", fast)
    assert isinstance(manifest, RayConfig)
    path = tmp_path / "out.yaml"
    write_yaml(path, manifest.to_dict())
    assert read_policy(path) == fast


def test_a_policy_without_labels_can_name_the_servers_of_one_llm():
    plain = Trigger("requests_in_flight", 4.0)
    stated = Trigger("requests_waiting", 4.0, labels=(LABELS,))
    labelled = ScaledObject("llm", Reactive((plain, stated), 3)).labelled('model_name="org/name"')
    first, second = (query for query, _ in labelled.thresholds)
    assert first.count('{model_name="org/name"}') == 2
    assert second == f"sum(vllm:num_requests_waiting{{{LABELS}}})"


def test_labels_of_a_horizontal_pod_autoscaler_are_kept(tmp_path):
    selector = "name: vllm:num_requests_running, selector: {matchLabels: {namespace: chat}}"
    text = HPA.replace("name: vllm:num_requests_running", selector)
    policy = read_policy(written(tmp_path, text))
    assert isinstance(policy, Reactive)
    assert policy.triggers[0].labels == ('namespace="chat"',)


def test_replicas_over_time_are_read(tmp_path):
    text = "t_s,desired,ready\n0,1,1\n16,2,1\n31,2,2\n"
    found = read_policy(written(tmp_path, text, "replicas.csv"))
    assert isinstance(found, Timeline)
    assert (found.time_s.tolist(), found.replicas.tolist()) == ([0, 16, 31], [1, 1, 2])
    assert found.is_ready
    orders = read_policy(written(tmp_path, "t_s,replicas\n0,1\n16,3\n", "orders.csv"))
    assert isinstance(orders, Timeline)
    assert (orders.most, orders.is_ready) == (3, False)


WRONG = [
    ("kind: Deployment", "", "", "no autoscaling policy"),
    (KEDA, WAITING, "sum(my_metric)", "is not simulated"),
    (KEDA, WAITING, f"{WAITING} / 2", "is not simulated"),
    (KEDA, WAITING, "sum(vllm:num_requests_running) - 3", "is not simulated"),
    (KEDA, WAITING, "vllm:num_requests_running or vector(5)", "is not simulated"),
    (KEDA, WAITING, "min(vllm:num_requests_running)", "is not simulated"),
    (KEDA, WAITING, f"rate({WAITING}[1m])", "the rate of a gauge is no mean"),
    (KEDA, WAITING, "max(avg_over_time(vllm:num_requests_waiting[1m]))", "largest of means"),
    (KEDA, WAITING, "avg(rate(vllm:request_success_total[1m]))", "mean or the largest rate"),
    (
        KEDA,
        WAITING,
        "histogram_quantile(1.5.5, rate(vllm:time_to_first_token_seconds_bucket[5m]))",
        "1.5.5 in .* is no quantile",
    ),
    (
        KEDA,
        WAITING,
        "histogram_quantile(2, rate(vllm:time_to_first_token_seconds_bucket[5m]))",
        "2 in .* is no quantile",
    ),
    (KEDA, "'5'", "x", "'threshold': x is not a number from"),
    (KEDA, "type: prometheus", "type: cpu", "cpu is not simulated"),
    (KEDA, "Count: 8", "Count: 0.5", "'maxReplicaCount': 0.5 is not a whole number from 1 on"),
    (
        KEDA,
        "cooldownPeriod: 360",
        "minReplicaCount: 500m",
        "'minReplicaCount': 500m is not a whole",
    ),
    (KEDA, "Period: 360", "Period: 0.5", "'cooldownPeriod': 0.5 is not a whole number"),
    (KEDA, "Seconds: 120", "Seconds: 0.5", "'stabilizationWindowSeconds': 0.5 is not a whole"),
    (KEDA, "value: 2", "value: 1.5", "'value': 1.5 is not a whole number from 1 on"),
    (KEDA, "periodSeconds: 60", "periodSeconds: 0", "'periodSeconds': 0 is not a whole"),
    (HPA, "maxReplicas: 6", "maxReplicas: 100000000", "'maxReplicas': 100,000,000 replicas"),
    (HPA, "maxReplicas: 6", "maxReplicas: 1", "'minReplicas': 2 is above 1"),
    (HPA, "maxReplicas: 6", "", "'maxReplicas': missing"),
    (HPA, "minReplicas: 2", "minReplicas: 1.5", "'minReplicas': 1.5 is not a whole number"),
    (HPA, "type: Pods\n", "type: Resource\n", "Resource is not simulated"),
    (RAY, "target_ongoing_requests", "upscaling_factor", "factors are not simulated"),
    (RAY, "max_replicas: 4", "max_replicas: 1.5", "'max_replicas': 1.5 is not a whole number"),
    (RAY, "min_replicas: 1", "min_replicas: 5", "'min_replicas': 5 is above 4"),
    (RAY, "max_replicas: 4", "max_replicas: 200000000", "'max_replicas': 200,000,000 replicas"),
    ("t_s,replicas\n", "\n", "\n900,3\n", "the first time is 900 s"),
    ("t_s,replicas\n", "\n", "\n0,3\ninf,3\n", "line 3"),
    ("t_s,replicas\n", "\n", "\n0,1\n0,2\n", "line 3"),
    ("t_s,replicas\n", "\n", "\n0,1.5\n", "line 2"),
    ("t_s,replicas\n", "\n", "\n0,0\n", "never a replica"),
    ("t_s,replicas\n", "", "", "never a replica"),
    ("t_s,replicas\n", "replicas\n", "pods\n0,1\n", "column missing"),
]


@pytest.mark.parametrize(("text", "old", "new", "words"), WRONG)
def test_what_is_not_simulated_is_said_with_its_file(tmp_path, text, old, new, words):
    name = "a.csv" if text.startswith("t_s") else "a.yaml"
    path = written(tmp_path, text.replace(old, new) if old else text, name)
    with pytest.raises(InputError, match=words) as raised:
        read_policy(path)
    assert str(path) in str(raised.value)


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """Return half an hour with a peak in its middle."""
    folder, rng = tmp_path_factory.mktemp("trace"), np.random.default_rng(0)
    rates = np.repeat([1.0, 12.0, 1.0], 600)
    counts = rng.poisson(rates)
    arrival_s = np.sort(np.repeat(np.arange(1800), counts) + rng.random(counts.sum()))
    columns = {"arrival": arrival_s, "input": 1500, "output": 300}
    pd.DataFrame(columns).to_csv(folder / "day.csv", index=False)
    out = folder / "day.parquet"
    names = "arrival=arrival,input_tokens=input,output_tokens=output"
    sextant("ingest", folder / "day.csv", "--columns", names, "--out", out)
    return out


LLM = ("--hf-config", "resources/llms/meta-llama__Llama-3.1-70B-Instruct.json")


def test_capacity_compares_a_policy_and_writes_a_tuned_one(tmp_path, trace):
    labels = 'namespace="chat"'
    path = written(tmp_path, KEDA.replace(WAITING, f"sum(vllm:num_requests_waiting{{{labels}}})"))
    out = tmp_path / "tuned.yaml"
    folder = tmp_path / "deployed"
    limits = ("--ttft-ms", "p95:2000", "--tpot-ms", "p95:60", "--window", "1min")
    profile = ("--gpu-profiles", "4xH100-80GB", "--startup", "60s", "--draws", "16")
    asked = ("capacity", "--trace", trace, *LLM, *limits, *profile)
    tuning = ("--policy", path, "--tune-policy", out, "--attainment", "0.9")
    sextant(*asked, *tuning, "--deploy", "kubernetes", "--out", folder)
    answer = json.loads((folder / "answer.json").read_text())
    found = answer["scaling"]
    rows = {row["policy"]: row for row in found["policies"]}
    assert list(rows) == ["fixed", "schedule", "policy", "tuned", "foresight"]
    assert rows["fixed"]["gpu_hours"] == pytest.approx(2 * answer["replicas"], rel=0.01)
    assert rows["fixed"]["usd"] == pytest.approx(0.5 * answer["usd_per_hour"], rel=0.01)
    assert rows["foresight"]["gpu_hours"] < rows["fixed"]["gpu_hours"]
    assert rows["tuned"]["attainment"] >= 0.9
    assert rows["foresight"]["attainment"] >= rows["policy"]["attainment"]
    assert len(found["timeline"]["is_met"]) == found["n_windows"] == 30
    # A tuned policy is written as it was simulated: its file gives the same again.
    for file in (out, tmp_path / "tuned.values.yaml", folder / "scaledobject.yaml"):
        assert file.read_text().count(labels) == file.read_text().count("vllm:")
        again = json.loads(sextant(*asked, "--policy", file, "--format", "json"))
        row = again["scaling"]["policies"][2]
        assert (row["attainment"], row["gpu_hours"]) == (
            rows["tuned"]["attainment"],
            rows["tuned"]["gpu_hours"],
        )
    manifest = yaml.safe_load((folder / "scaledobject.yaml").read_text())
    (deployment, _) = yaml.safe_load_all((folder / "kubernetes.yaml").read_text())
    assert manifest["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    text = sextant(*asked, "--policy", path)
    assert "Autoscaling:" in text
    assert "Worst minute" in text


def test_simulate_follows_replicas_over_time(tmp_path, trace):
    path = written(tmp_path, "t_s,ready\n0,1\n500,3\n1200,1\n", "ready.csv")
    profile = ("--gpu-profile", "4xH100-80GB", "--draws", "0")
    asked = ("simulate", "--trace", trace, *LLM, *profile, "--policy", path)
    answer = json.loads(sextant(*asked, "--format", "json"))
    assert [row["ready"] for row in answer["by_minute"]][:25:8] == [1, 3, 3, 1]
    assert answer["replica_hours"] == pytest.approx((500 + 3 * 700 + 600) / 3600, rel=0.02)
    assert sum(row["n_requests"] for row in answer["by_minute"]) == answer["n_requests"]
    # Little's law: requests in flight are the time they stay over the time there is.
    in_flight = np.mean([row["in_flight"] for row in answer["by_minute"]])
    e2e_s = answer["e2e_ms"]["mean"] / 1e3
    assert in_flight == pytest.approx(answer["n_requests"] * e2e_s / 1800, rel=0.03)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--startup", "boot=3s"), "'boot' is no phase"),
        (("--startup", "image=3s,image=4s"), "'image' is no phase, or there twice"),
        (("--startup", "image=3s,engine"), "'' is not a time"),
        (("--attainment", "0.9"), "no policy is tuned"),
        (("--tune-policy", "a.yaml", "--attainment", "2"), "2 is not a share"),
        (("--policy", "missing.yaml"), "missing.yaml"),
    ],
)
def test_wrong_options_of_policies_are_said(trace, options, words):
    with pytest.raises(InputError, match=words):
        sextant("capacity", "--trace", trace, *LLM, "--ttft-ms", "2000", *options)


PAUSED = "{autoscaling.keda.sh/paused: 'true'}"
KEDA_REFUSED = {
    "pollingInterval: 0": "'pollingInterval'.*from 1 on",
    "pollingInterval: -1": "'pollingInterval'.*from 1 on",
    "pollingInterval: x": "'pollingInterval'.*from 1 on",
    "pollingInterval: .nan": "'pollingInterval'.*from 1 on",
    "fallback: {failureThreshold: 3, replicas: 6}": "'fallback'.*leave it out",
    "idleReplicaCount: 0": "'idleReplicaCount'.*leave it out",
}


@pytest.mark.parametrize(("line", "said"), KEDA_REFUSED.items())
def test_what_a_simulation_does_not_follow_is_refused(tmp_path, line, said):
    text = KEDA.replace("  maxReplicaCount: 8", f"  maxReplicaCount: 8\n  {line}")
    with pytest.raises(InputError, match=said):
        read_policy(written(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{name: chat}\nspec", f"{{name: chat, annotations: {PAUSED}}}\nspec", "paused"),
        ("    metadata:\n", "    metricType: Bogus\n    metadata:\n", "'metricType'.*AverageValue"),
        ("      threshold", "      activationThreshold: '3'\n      threshold", "'activationThresh"),
        (WAITING, f"sum(rate({WAITING[4:-1]}[1m]))", "rate of a gauge"),
        (WAITING, f"histogram_quantile(0.9, {WAITING})", "no histogram"),
    ],
)  # fmt: skip
def test_a_wrong_setting_of_a_scaled_object_is_refused(tmp_path, old, new, said):
    assert old in KEDA
    with pytest.raises(InputError, match=said):
        read_policy(written(tmp_path, KEDA.replace(old, new)))


@pytest.mark.parametrize("share", ["2", "1.5.5", ".", ""])
def test_a_quantile_is_a_share(tmp_path, share):
    ttft = "sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m]))"
    assert keda(tmp_path, f"histogram_quantile(0.95, {ttft})").triggers[0].share == 0.95
    with pytest.raises(InputError, match="no quantile"):
        keda(tmp_path, f"histogram_quantile({share}, {ttft})")


def test_values_of_two_llms_or_switched_off_are_refused(tmp_path):
    one = "one: {keda: {enabled: ENABLED, maxReplicaCount: 4, triggers: [{type: prometheus, "
    one += f"metadata: {{query: {WAITING}, threshold: '5'}}}}]}}}}\n"
    assert read_policy(written(tmp_path, one.replace("ENABLED", "true"))).most == 4
    with pytest.raises(InputError, match=r"'enabled'.*switched off"):
        read_policy(written(tmp_path, one.replace("ENABLED", "false")))
    with pytest.raises(InputError, match="2 policies"):
        enabled = one.replace("ENABLED", "true")
        read_policy(written(tmp_path, enabled + enabled.replace("one", "two", 1)))


def test_a_policy_that_looks_too_often_is_refused(tmp_path):
    policy = read_policy(written(tmp_path, RAY + "      metrics_interval_s: 0.001\n"))
    with pytest.raises(InputError, match=r"3,600,000 looks.*every 1 s or less often"):
        policy.looks_s(3600.0)

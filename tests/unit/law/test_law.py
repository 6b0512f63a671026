"""The law of `roofline` of servers with CUDA graphs: what it must say, and how it is fitted."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from sextant.facts.gpu import GPU, GPUS, GPUProfile, load_gpu, profile_of_id
from sextant.facts.kernels import reached
from sextant.facts.llm import load_llm
from sextant.law.effects import deployments
from sextant.law.fact_rows import fact_rows
from sextant.law.fit import LawProblem, fit_law, fit_law_near
from sextant.law.posterior import columns_of
from sextant.law.roofline import Roofline
from sextant.law.terms import LAW, PARAMETERS, step_law, terms
from sextant.law.unseen import pair_misfit
from sextant.points.frame import IDENTIFIERS, LENGTHS, TARGETS, FactTables
from sextant.predict.predictor import TrainingRows

CONFIGS = GPUS.parent / "llms"
NAMES = ("meta-llama__Llama-3.1-70B", "nvidia__Llama-3.1-8B-Instruct-FP8", "Qwen__Qwen3-32B")
NAMES += ("openai__gpt-oss-120b", "moonshotai__Kimi-K2.5")
LLMS = {name: load_llm(CONFIGS / f"{name}.json", "bfloat16") for name in NAMES}
DENSE, MOE = "meta-llama__Llama-3.1-70B", "openai__gpt-oss-120b"
DEVICES = [load_gpu(GPUS, path.stem) for path in sorted(GPUS.glob("*.yaml"))]
PROFILES = {
    f"{n}x{gpu.gpu_id}": GPUProfile(f"{n}x{gpu.gpu_id}", gpu, n, 1.0)
    for gpu in DEVICES
    for n in (1, 2, 8)
}
NEW = [DENSE, MOE]
"""LLMs that the predictor of these tests has not seen."""
USERS = (1, 8, 64, 512)
# What a device has, of which more is better.
ABILITIES = ("memory_gib", "memory_bandwidth_gb_s", "dense_16bit_tflops", "dense_fp8_tflops")
ABILITIES += ("dense_fp4_tflops", "interconnect_gb_s")


def rows(llm_ids=(DENSE,), profile_ids=("8xH100-80GB",), users=USERS, lengths=(1024, 512), **more):
    """Return the facts of all these points."""
    keys = [(llm, profile, n) for llm in llm_ids for profile in profile_ids for n in users]
    frame = pd.DataFrame(keys, columns=[*IDENTIFIERS, "users"])
    served = {"engine": "vllm", "engine_version": "0.19.0"} | more
    frame = frame.assign(**dict(zip(LENGTHS, lengths, strict=True)), **served)
    return fact_rows(frame, FactTables(LLMS, PROFILES))


def latencies(X: pd.DataFrame) -> np.ndarray:
    """Return nTTFT and ITL in ms at the law's prior, (rows, 2)."""
    design = LAW.design(X)
    return np.exp(LAW.predict_log(design.parameters(design.mean), columns_of(X)))


def parts(X: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the law's terms at its prior."""
    design = LAW.design(X)
    return terms(design.parameters(design.mean), columns_of(X))


@pytest.mark.parametrize("llm_id", LLMS)
def test_more_users_are_never_faster_and_longer_prompts_take_longer(llm_id):
    found = latencies(rows([llm_id], users=range(1, 1025)))
    assert (np.diff(found, axis=0) >= 0).all()
    found = np.stack([latencies(rows([llm_id], lengths=(n, 512))) for n in (128, 1024, 8192)])
    ttft = found[..., 0] * np.array([128, 1024, 8192])[:, None]
    assert (np.diff(ttft, axis=0) > 0).all()
    assert (np.diff(found[:, 0, 1]) > 0).all(), "the KV cache is longer"
    assert (np.diff(ttft + 511 * found[..., 1], axis=0) > 0).all(), (
        "where it is full, fewer share it"
    )


def fitted() -> Roofline:
    """Return the predictor, fitted to points of the law with LLMs that differ a little."""
    measured = [name for name in PROFILES if "H100-80GB" in name or "A100-80GB" in name]
    X = rows([name for name in LLMS if name not in NEW], measured)
    rng = np.random.default_rng(0)
    per_llm = dict(zip(LLMS, rng.normal(0, 0.1, (len(LLMS), 2)), strict=True))
    y = latencies(X) * np.exp(np.array([per_llm[name] for name in X["llm_id"]]))
    y *= np.exp(rng.normal(0, 0.03, y.shape))
    return Roofline(None, PROFILES, 0).fit(TrainingRows(X, pd.DataFrame(y, X.index, TARGETS)))


MODEL = fitted()


def test_a_device_with_more_of_everything_is_never_predicted_slower():
    gpus = [gpu for gpu in DEVICES if gpu.kind == "gpu"]

    def dominates(one: GPU, other: GPU) -> bool:
        pairs = [(getattr(one, name) or 0, getattr(other, name) or 0) for name in ABILITIES]
        return all(first >= second for first, second in pairs)

    pairs = [(one, two) for one, two in permutations(gpus, 2) if dominates(one, two)]
    # Effects of architectures, which are learned, may set different ones apart.
    pairs = [(one, two) for one, two in pairs if one.architecture == two.architecture]
    assert ("H200-141GB", "H100-80GB") in {(one.gpu_id, two.gpu_id) for one, two in pairs}
    for one, two in pairs:
        for n in (1, 2, 8):
            found = []
            kv_tokens = []
            for gpu in (one, two):
                X = rows(NEW, [f"{n}x{gpu.gpu_id}"])
                kv_tokens.append(X["kv_tokens"].to_numpy())
                explained = MODEL.explain(X)[TARGETS]
                # With more memory more requests share a step, and fewer queue.
                tokens = X[["input_tokens", "output_tokens"]].to_numpy()
                found.append((explained.to_numpy() * tokens).sum(axis=1))
            better, worse = found
            # Buffers of collectives over NVLink may leave it less of the same memory.
            has_no_less = kv_tokens[0] >= kv_tokens[1]
            assert (better <= worse * (1 + 1e-9))[has_no_less].all(), (one, two, n)


def test_a_replica_on_several_nodes_waits_for_the_network():
    """DeepSeek-V3 is no faster for few users on 16 H100 than on 8 H200; 64 are not one domain."""
    llms = {"deepseek": load_llm(CONFIGS / "deepseek-ai__DeepSeek-V3.1.json", "bfloat16")}
    names = ("8xH200-141GB", "16xH100-80GB", "64xH100-80GB", "16xGB200-186GB")
    profiles = {name: profile_of_id(name) for name in names}
    wide = replace(load_gpu(GPUS, "H100-80GB"), n_gpus_per_node=64)
    profiles["64xwide"] = GPUProfile("64xwide", wide, 64)
    keys = [("deepseek", name, users) for name in profiles for users in (1, 8)]
    frame = pd.DataFrame(keys, columns=[*IDENTIFIERS, "users"])
    frame = frame.assign(input_tokens=1500.0, output_tokens=250.0, engine="vllm")
    X = fact_rows(frame, FactTables(llms, profiles))
    itl_ms = pd.Series(latencies(X)[:, 1], X["gpu_profile_id"])
    slow, fast = itl_ms["16xH100-80GB"], itl_ms["8xH200-141GB"]
    assert (slow.to_numpy() > fast.to_numpy()).all()
    apart, joined = parts(X.iloc[4:6]), parts(X.iloc[8:10])
    # Two all-reduces in each of 61 layers, 47.5 us each over eight nodes.
    added_ms = apart["launch_ms"] - joined["launch_ms"]
    assert added_ms == pytest.approx(2 * 61 * 0.0475)
    assert (X["network_sync_ms"] > 0).tolist() == [False] * 2 + [True] * 4 + [False] * 4


def test_new_llms_and_versions_may_differ_much_as_some_known_ones_do():
    """Student's t: half of them are close to the law, and yet one in a hundred is far from it."""
    for parameter in ("support ttft_offset", "version itl_offset"):
        assert parameter in MODEL.posterior_.spread
    one = rows([DENSE], ["8xH100-80GB"], users=[8], engine_version="0.99")
    drawn = np.log(MODEL.sample(one)[:, 0, 1])
    quarter, median, three = np.quantile(drawn, (0.25, 0.5, 0.75))
    normal_reach = 2.58 * (three - quarter) / 1.35
    assert (np.abs(drawn - median) > normal_reach).mean() > 0.02


def test_predictions_are_close_to_what_was_measured_and_inside_of_their_intervals():
    X = rows(NEW, ["2xH200-141GB"])
    draws = MODEL.sample(X)
    low, median, high = np.quantile(draws, (0.05, 0.5, 0.95), axis=0)
    truth = latencies(X)
    assert np.abs(np.log(median / truth)).mean() < 0.3
    assert ((low < truth) & (truth < high)).mean() > 0.8


def test_fp8_weights_and_caches_are_read_in_half_of_the_time_at_what_kernels_reach():
    plain, packed = parts(rows()), parts(rows(precision="fp8", kv_precision="fp8"))
    gpu = load_gpu(GPUS, "H100-80GB")
    for kind, name in (("dense", "weights_ms"), ("decode_attention", "kv_ms")):
        shares = [reached(gpu, "vllm", kind, it).bandwidth_share for it in ("bf16", "fp8")]
        assert packed[name] == pytest.approx(plain[name] / 2 * shares[0] / shares[1], rel=0.03)
    warm = parts(rows(prefix_hit_rate=0.9))
    assert (packed["prefill_ms"] < plain["prefill_ms"]).all()
    assert (warm["prefill_ms"] < plain["prefill_ms"]).all(), "a cached prefix is not computed"


def test_a_step_reads_the_experts_that_its_tokens_choose():
    weights = parts(rows([MOE], users=(1, 4, 4096)))["weights_ms"]
    assert weights[1] < 4 * weights[0]
    llm = LLMS[MOE]
    read = llm.step_weight_bytes + llm.expert_weight_bytes
    assert weights[2] > read / 8 / (3350 * 1e6), "all of them, at less than the full bandwidth"


def test_users_beyond_the_memory_wait():
    X = rows(["Qwen__Qwen3-32B"], ["1xH100-80GB"], users=(8, 512), lengths=(8192, 1024))
    assert (X["kv_tokens"] < 64 * 8192).all()
    found = parts(X)
    assert found["queueing_ms"][1] > 10 * found["prefill_ms"][1]
    assert found["itl_batch"][1] < 64, "those who wait are not in its steps"


def test_a_server_that_gathers_prompts_has_them_wait_for_steps():
    few, many = (parts(rows(users=(1, 2), wait_steps=steps)) for steps in (0.0, 15.0))
    later_ms = many["batching_ms"] - few["batching_ms"]
    itl_ms = sum(many[name] for name in LAW.itl_terms)
    assert later_ms[0] == 0  # alone, nothing is gathered
    assert 14 * itl_ms[1] < later_ms[1] < 16 * itl_ms[1]


def test_the_terms_add_up():
    X = rows(LLMS)
    explained = MODEL.explain(X)
    names = ["launch_ms", "weights_ms", "kv_ms", "sequences_ms", "other_prompts_ms"]
    itl = explained[names].sum(axis=1) * explained["itl_factor"]
    ttft = explained[["prefill_ms", "batching_ms", "queueing_ms"]].sum(axis=1)
    assert itl.to_numpy() == pytest.approx(explained["itl_ms"])
    nttft = ttft / X["input_tokens"] * explained["nttft_factor"]
    assert nttft.to_numpy() == pytest.approx(explained["nttft_ms"])


def test_engines_and_cpu_cores_without_cuda_graphs_are_told_apart():
    keys = pd.DataFrame({"llm_id": DENSE, "gpu_profile_id": "1xH100-80GB", "users": 1}, range(4))
    keys = keys.assign(engine=["vllm", "tgis", None, "sglang"], **dict.fromkeys(LENGTHS, 100.0))
    assert fact_rows(keys, FactTables(LLMS, PROFILES))["is_eager"].tolist() == [0, 1, 0, 0]
    cpu = replace(PROFILES["1xH100-80GB"], gpu=load_gpu(GPUS, "cpu-core"))
    on_cores = FactTables(LLMS, PROFILES | {"1xH100-80GB": cpu})
    assert fact_rows(keys, on_cores)["is_eager"].all()
    # An engine that has them may be started without.
    told = keys.assign(cuda_graphs=[False, False, None, True])
    assert fact_rows(told, FactTables(LLMS, PROFILES))["is_uncaptured"].tolist() == [1, 0, 0, 0]
    assert not fact_rows(told, on_cores)["is_uncaptured"].any()


def test_launches_one_by_one_hide_behind_the_work_of_many_users():
    captured, told = rows([DENSE]), rows([DENSE], cuda_graphs=False)
    before, after = MODEL.explain(captured), MODEL.explain(told)
    names = ["launch_ms", "weights_ms", "kv_ms", "sequences_ms"]
    host_ms = captured["n_layers"].iloc[0] * PARAMETERS["host"].prior
    added = (after[names].sum(axis=1) / before[names].sum(axis=1) - 1).to_numpy()
    assert after[names].iloc[0].sum() > host_ms > before[names].iloc[0].sum()
    assert added[0] > 0.5 and added[-1] < 0.1
    assert (np.diff(added) < 0).all()


def test_each_engine_has_a_scale_of_errors_of_its_own():
    profile_ids = [name for name in PROFILES if name.startswith("8x")]
    X = pd.concat([rows(LLMS, profile_ids, engine=name) for name in ("vllm", "sglang")])
    sd = X["engine"].map({"vllm": 0.05, "sglang": 0.4}).to_numpy()[:, None]
    made = latencies(X) * np.exp(np.random.default_rng(0).standard_t(4, (len(X), 2)) * sd)
    posterior = fit_law(LAW, X, made).posterior
    for engine, scale in (("vllm", 0.05), ("sglang", 0.4)):
        assert posterior.noise[engine] == pytest.approx(scale, rel=0.25)
    alike = X.iloc[:1].assign(engine="vllm"), X.iloc[:1].assign(engine="sglang")
    spread = [np.diff(np.quantile(posterior.draw_errors(x, 4000, 0), [0.1, 0.9])) for x in alike]
    assert spread[1] > 5 * spread[0]


def test_the_misfit_of_an_llms_deployments_is_the_least_spread_of_a_new_one():
    X = rows(LLMS, [name for name in PROFILES if name.startswith("8x")])
    names, pairs = np.unique(deployments(X), return_inverse=True)
    own = np.random.default_rng(0).normal(0, 0.25, (len(names), 2))
    y_ms = latencies(X) * np.exp(own[pairs])
    fitted = fit_law(LAW, X, y_ms)
    least = pair_misfit(fitted, X, deployments(X))
    # As many draws of Student's t lie within 90% as of a normal deviation of 0.25.
    assert least == pytest.approx(dict.fromkeys(least, 0.25 * 1.645 / 2.92), rel=0.3)
    assert set(least) == {"pair ttft_offset", "pair itl_offset"}
    raised = {name: 2 * scale for name, scale in least.items()}
    again = fit_law_near(LawProblem.of(LAW, X, y_ms), fitted.posterior, raised)
    spread = again.posterior.spread
    assert {name: spread[name] for name in raised} == pytest.approx(raised)


def test_every_device_moves_the_states_of_all_tokens_to_experts_and_back():
    def states_and_token_ms(profile_id: str, **more: float) -> tuple[float, float]:
        X = rows([MOE], [profile_id], users=(1,), **more)
        design = LAW.design(X)
        phi = design.parameters(design.mean)
        phi[:, [*PARAMETERS].index("link")] = np.log(1e9)
        law = step_law(phi, columns_of(X))
        return float(X["states_ms"].iloc[0]), float(law.prefill_token_ms[0])

    states_ms, alone_ms = states_and_token_ms("1xH100-80GB")
    assert states_ms > 0 == float(rows()["states_ms"].iloc[0])
    _, shared_ms = states_and_token_ms("8xH100-80GB")
    assert shared_ms - states_ms == pytest.approx((alone_ms - states_ms) / 8, rel=0.01)
    # Copies of attention move those of their own requests.
    _, copied_ms = states_and_token_ms("8xH100-80GB", data_parallel=8.0)
    assert copied_ms == pytest.approx(alone_ms / 8, rel=0.01)


def test_experts_are_read_no_faster_than_memory_is():
    X = rows([MOE], ["1xH100-80GB"], users=(1,))
    design = LAW.design(X)
    phi = np.tile(design.parameters(design.mean), (3, 1))
    for name, values in (("expert_bandwidth", [1.0, 3.0, 30.0]), ("expert_visit", [1e-9] * 3)):
        phi[:, [*PARAMETERS].index(name)] = np.log(values)
    read_ms = step_law(phi, columns_of(pd.concat([X] * 3))).expert_ms
    least_ms = X["expert_bytes"].iloc[0] / X["bytes_per_ms"].iloc[0]
    assert read_ms[0] > 1.3 * least_ms and read_ms[1] > read_ms[2] > least_ms
    assert read_ms[1:] == pytest.approx(least_ms, rel=0.01)

"""The whole way from points to scores in a world whose latencies follow a roofline."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import SLO
from sextant.judge.evaluate import evaluate_predictor
from sextant.judge.task import Task
from sextant.points.frame import SERVING, FactTables

USERS = (1, 4, 16)
PROFILES = {
    name: GPUProfile(name, GPU(name, "gpu", "x", 80.0, bandwidth, tflops, 32.0, "invented"), 1, usd)
    for name, bandwidth, tflops, usd in [("slow", 500.0, 100.0, 1.0), ("fast", 2000.0, 400.0, 3.0)]
}
SLOS = [
    SLO("chat", nttft_ms=1.0, itl_ms=20.0, percentile=50, users=40),
    SLO("crowd", nttft_ms=1.0, itl_ms=20.0, percentile=50, users=400),
    SLO("dream", nttft_ms=1e-6, itl_ms=1e-6, percentile=99, users=40),
]


def llm(layers: int) -> LLM:
    sizes, n = (layers, 2048, 8192, 16, 16, 128, 32000, 2048), layers * 12 * 2048**2
    return LLM("llama", *sizes, "float16", n, n)


LLMS = {f"m{layers}": llm(layers) for layers in (24, 32, 48, 64)}


def roofline_points(llms: dict[str, LLM]) -> pd.DataFrame:
    """Weights read once a token, products paid per token: both grow with users."""
    rows = []
    for llm_id, facts in llms.items():
        for profile_id, profile in PROFILES.items():
            for users in USERS:
                itl = facts.weight_bytes / (profile.gpu.memory_bandwidth_gb_s * 1e6)
                nttft = 2 * facts.n_flop_parameters / (profile.gpu.dense_16bit_tflops * 1e9)
                row = {"llm_id": llm_id, "gpu_profile_id": profile_id, "users": users}
                row["throughput_tok_s"] = 1000 * users / (itl * (1 + users / 16))
                for prefix, tail in (("median", 1.0), ("p90", 1.5), ("p99", 3.0)):
                    row[f"{prefix}_nttft_ms"] = tail * nttft * (1 + users / 4)
                    row[f"{prefix}_itl_ms"] = tail * itl * (1 + users / 16)
                rows.append(row)
    return pd.DataFrame(rows)


POINTS = roofline_points(LLMS)


def run(predictor: str, points: pd.DataFrame = POINTS, llms: dict[str, LLM] = LLMS, **options):
    every = {(llm_id, profile_id) for llm_id in llms for profile_id in PROFILES}
    feasible = options.pop("feasible", every)
    task = Task("synthetic", points, FactTables(llms, PROFILES), feasible)
    return evaluate_predictor(task, options.pop("slos", SLOS), predictor, seed=5, **options)


@pytest.fixture(scope="module")
def pilot():
    told: list[str] = []
    llms = LLMS | {"new": llm(40)}
    feasible = {(name, profile) for name in llms for profile in PROFILES} - {("m64", "slow")}
    return run("llm_pilot", llms=llms, feasible=feasible, progress=told.append), told


@pytest.fixture(scope="module")
def plain():
    return run("llm_pilot", slos=SLOS[:1])


def test_the_measured_optimum_by_hand():
    result = run("measured", slos=SLOS[:1])
    rows = result.recommendations.set_index("llm_id")
    chosen = ["gpu_profile_id", "replicas", "usd_per_hour"]
    # m24 has 1.208e9 parameters: on `slow` its ITL is 4.83 ms (1 + u/16), below 20 ms even
    # at 16 users; its nTTFT 0.024 ms (1 + u/4). 3 replicas of 16 users carry 40.
    assert rows.loc["m24", chosen].tolist() == ["slow", 3, 3.0]
    # m64: 12.9 ms (1 + u/16) exceeds 20 ms at 16 users. 10 x 4 users, or 3 x 16 on `fast`.
    assert rows.loc["m64", chosen].tolist() == ["fast", 3, 9.0]
    score = result.scores.iloc[0]
    assert (score["n_llms"], score["so_score"], score["overspend"]) == (4, 1.0, 0.0)
    assert result.predictions.empty


def test_an_slo_of_other_requests_is_judged_by_points_of_such_alone():
    points = POINTS.assign(input_tokens=1000.0, output_tokens=200.0)
    alike, other = (replace(SLOS[0], input_tokens=n, output_tokens=200.0) for n in (900.0, 4000.0))
    same = run("measured", points, slos=[SLOS[0], alike]).scores
    assert same["n_llms"].tolist() == [4, 4]
    result = run("roofline", points, LLMS | {"new": llm(40)}, slos=[SLOS[0], other])
    asked, unjudged = result.scores.to_dict("records")
    assert (asked["n_llms"], unjudged["n_llms"]) == (4, 0)
    assert unjudged["note"] == "no point has requests like those of this SLO"
    of_other = result.recommendations.query("slo_id == 'chat'").iloc[-5:]
    assert set(of_other["llm_id"]) == {"new", *LLMS} and of_other["is_success"].isna().all()
    # Longer prompts take longer per output token: each is predicted at its own lengths.
    itl = result.predictions.groupby(result.predictions.index >= len(result.predictions) // 2)
    assert itl["nttft_ms"].mean().nunique() == 2
    assert run("measured", points, slos=[other]).recommendations.empty


def test_points_of_many_lengths_judge_an_slo_by_those_like_its_own():
    parts = [POINTS.assign(input_tokens=n, output_tokens=200.0) for n in (1000.0, 4000.0)]
    points = pd.concat(parts, ignore_index=True).assign(
        **dict.fromkeys([*SERVING, "request_rate_rps"])
    )
    slos = [SLOS[0], replace(SLOS[0], slo_id="short", input_tokens=1000.0, output_tokens=200.0)]
    facts, pairs = FactTables(LLMS, PROFILES), set()
    task = Task("synthetic", points, facts, pairs, has_fixed_lengths=True)
    for predictor in ("measured", "roofline"):
        result = evaluate_predictor(task, slos, predictor, seed=5)
        assert result.scores["n_llms"].tolist() == [8, 4]
        short = result.recommendations.query("slo_id == 'short'")
        assert len(short) == 4 and short["llm_id"].str.endswith(" 1000/200").all()
    wrong = replace(slos[1], input_tokens=50.0)
    with pytest.raises(InputError, match=r"short: 50 input_tokens.*1000/200, 4000/200"):
        evaluate_predictor(task, [wrong], "measured", seed=5)


def test_every_fold_predicts_what_memory_allows_at_every_user_count(pilot):
    predictions = pilot[0].predictions
    chat = predictions[predictions["slo_id"] == "chat"]
    folds = chat.groupby("llm_id")["fold"].unique().str.join(",").to_dict()
    assert folds == {name: name for name in LLMS} | {"new": "all"}
    assert chat.groupby("llm_id").size().to_dict() == dict.fromkeys(folds, 6) | {"m64": 3}
    assert chat[["nttft_lo_ms", "nttft_hi_ms", "itl_lo_ms", "itl_hi_ms"]].isna().all(axis=None)
    grouped = chat.sort_values("users").groupby(["llm_id", "gpu_profile_id"])
    assert (grouped[["nttft_ms", "itl_ms"]].diff().dropna() >= 0).all(axis=None)


def test_slos_alike_in_limits_share_one_fit(pilot):
    result, told = pilot
    folds = [line for line in told if "fold" in line]
    assert len(folds) == 10  # 5 folds for chat and crowd, 5 for dream
    assert len(told) == 12  # and once each, that settings are tuned
    by_slo = result.predictions.groupby("slo_id")
    chat = by_slo.get_group("chat").drop(columns="slo_id").reset_index(drop=True)
    crowd = by_slo.get_group("crowd").drop(columns="slo_id").reset_index(drop=True)
    pd.testing.assert_frame_equal(chat, crowd)
    replicas = result.recommendations.set_index(["slo_id", "llm_id"])["replicas"]
    assert replicas["crowd", "m24"] > replicas["chat", "m24"]


def test_an_slo_nobody_can_meet_is_left_out_and_says_how_far_off(pilot):
    score = pilot[0].scores.set_index("slo_id").loc["dream"]
    assert (score["n_llms"], score["n_left_out"]) == (0, 4)
    assert np.isnan(score["so_score"])
    options = pilot[0].candidates.set_index(["slo_id", "llm_id", "gpu_profile_id"])
    assert options.loc[("chat", "m64", "slow"), "status"] == "does_not_fit"
    options = pilot[0].candidates.query("slo_id == 'dream' and gpu_profile_id == 'fast'")
    assert (options["status"] == "too_slow").all()
    assert (options["limit_ratio"] > 1e6).all()


def test_the_same_seed_gives_the_same_frames_with_several_processes(plain):
    again = run("llm_pilot", slos=SLOS[:1], n_jobs=2)
    for name in ("predictions", "candidates", "recommendations"):
        pd.testing.assert_frame_equal(getattr(plain, name), getattr(again, name), check_exact=True)


def test_the_static_policy_knows_the_truth_of_those_it_is_judged_on():
    result = run("static_policy", slos=SLOS[:1], feasible={(m, "fast") for m in LLMS})
    assert result.predictions.empty and result.candidates.empty
    # In hindsight 3 x slow serves three of four LLMs; memory facts rule it out here.
    rows = result.recommendations.set_index("llm_id")
    assert rows["gpu_profile_id"].isna().all() and not rows["is_success"].any()
    assert result.scores["n_llms"].tolist() == [4]
    assert np.isnan(result.scores["mape_itl"][0])
    best = run("static_policy", slos=SLOS[:1]).scores.iloc[0]
    # 3 x fast: S 1, O mean(2, 2, 2, 0); 3 x slow: S 3/4, O 0.
    assert best["success_rate"] == 0.75 and best["overspend"] == 0


def test_nothing_of_the_held_out_llm_reaches_its_predictions(plain):
    """Whatever the held-out LLM's latencies are, its model is the same: settings included."""
    mine = POINTS["llm_id"] == "m32"
    changed = POINTS.copy()
    noise = np.random.default_rng(1).lognormal(0, 2, mine.sum())
    for column in changed.columns[changed.columns.str.endswith("_ms")]:
        changed.loc[mine, column] *= noise
    after = run("llm_pilot", points=changed, slos=SLOS[:1]).predictions.set_index("llm_id")
    before = plain.predictions.set_index("llm_id")
    pd.testing.assert_frame_equal(before.loc["m32"], after.loc["m32"], check_exact=True)
    assert not before.loc["m48"].equals(after.loc["m48"])


@pytest.mark.parametrize("n_llms", [1, 2])
def test_too_few_llms_still_give_a_measured_recommendation(n_llms):
    llms = dict(list(LLMS.items())[:n_llms])
    points = POINTS[POINTS["llm_id"].isin(llms)]
    result = run("llm_pilot", points=points, llms=llms)
    assert result.predictions.empty and result.recommendations.empty
    assert result.scores["note"].tolist() == [
        f"llm_pilot is judged from 3 measured LLMs on; there are {n_llms}"
    ] * len(SLOS)
    assert run("measured", points=points, llms=llms).recommendations["replicas"].notna().any()


def test_an_llm_of_which_nothing_succeeded_is_predicted_from_the_others():
    points = POINTS.copy()
    points.loc[points["llm_id"] == "m24", points.columns.str.endswith("_ms")] = None
    result = run("llm_pilot", points=points, slos=SLOS[:1])
    assert result.predictions.query("llm_id == 'm24'")["fold"].unique().tolist() == ["all"]
    score = result.scores.iloc[0]
    assert (score["n_llms"], score["n_left_out"]) == (3, 1)


def test_an_llm_too_large_for_every_profile_is_listed_without_one():
    llms = LLMS | {"huge": llm(900)}
    feasible = {(name, profile) for name in LLMS for profile in PROFILES}
    result = run("llm_pilot", llms=llms, feasible=feasible, slos=SLOS[:1])
    row = result.recommendations.set_index("llm_id").loc["huge"]
    assert pd.isna(row["gpu_profile_id"]) and pd.isna(row["is_success"])
    assert "huge" not in set(result.predictions["llm_id"])


@pytest.mark.parametrize(
    ("change", "how", "message"),
    [
        ({"llm_id": "other"}, {}, "unknown 'other'"),
        ({"gpu_profile_id": "other"}, {}, "unknown 'other'"),
        ({"users": np.nan}, {}, "have no users.*--scenario-id"),
        ({"users": 4}, {}, r"more than one point.*select one workload"),
        ({}, {"slos": []}, "no SLO"),
        ({}, {"predictor": "oracle"}, r"unknown predictor 'oracle'.*llm_pilot"),
    ],
)
def test_what_cannot_be_understood_is_an_input_error(change, how, message):
    with pytest.raises(InputError, match=message):
        run(**{"predictor": "measured", "points": POINTS.assign(**change)} | how)


def test_a_source_without_any_point_has_empty_frames_and_a_note():
    for predictor in ("measured", "llm_pilot", "static_policy"):
        result = run(predictor, points=POINTS.iloc[:0])
        assert result.recommendations.empty and result.candidates.empty
        assert result.scores["n_llms"].tolist() == [0, 0, 0]
    assert result.scores["note"].str.contains("there are 0").all()


def test_points_where_nothing_succeeded_are_counted_and_meet_no_limit():
    points = POINTS.copy()
    nothing = (points["llm_id"] == "m24") & (points["gpu_profile_id"] == "slow")
    points.loc[nothing & (points["users"] >= 4), points.columns.str.endswith("_ms")] = None
    result = run("measured", points=points, slos=SLOS[:1])
    assert result.scores["n_unused_points"].tolist() == [2]
    options = result.candidates.set_index(["llm_id", "gpu_profile_id"])
    assert options.loc[("m24", "slow"), "users_per_replica"] == 1

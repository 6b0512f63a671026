"""How sure the law is of LLMs that a fit has not seen, and of one that was measured itself."""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPUS, load_gpu, profile_of_id
from sextant.facts.llm import load_llm
from sextant.law.fact_rows import fact_rows
from sextant.law.fit import LawProblem, fit_law, fit_law_near
from sextant.law.posterior import columns_of, unseen_key
from sextant.law.roofline import Roofline
from sextant.law.terms import LAW
from sextant.law.unseen import architecture_names, unseen_factors
from sextant.points.frame import IDENTIFIERS, TARGETS, FactTables
from sextant.predict.predictor import TrainingRows

CONFIGS = GPUS.parent / "llms"
NAMES = (
    "meta-llama__Llama-3.1-70B",
    "nvidia__Llama-3.1-8B-Instruct-FP8",
    "Qwen__Qwen3-32B",
    "Qwen__Qwen3-14B",
    "Qwen__Qwen3-8B",
    "openai__gpt-oss-120b",
    "moonshotai__Kimi-K2.5",
    "google__gemma-3-27b-it",
)
LLMS = {name: load_llm(CONFIGS / f"{name}.json", "bfloat16") for name in NAMES}
PROFILES = {name: profile_of_id(name) for name in ("8xH100-80GB", "4xH100-80GB", "8xMI300X-192GB")}
USERS = (1, 4, 16, 64, 256)
ASKED = "Qwen__Qwen3-32B"


def rows(llm_ids=LLMS, profile_ids=("4xH100-80GB", "8xH100-80GB"), users=USERS, engine="vllm"):
    """Return the facts of all these points."""
    keys = [(llm, profile, n) for llm in llm_ids for profile in profile_ids for n in users]
    frame = pd.DataFrame(keys, columns=[*IDENTIFIERS, "users"])
    frame = frame.assign(input_tokens=1024, output_tokens=256, engine=engine)
    return fact_rows(frame.assign(engine_version="0.19.0"), FactTables(LLMS, PROFILES))


def latencies(X: pd.DataFrame, spread: float) -> np.ndarray:
    """Return nTTFT and ITL in ms of LLMs that differ from the law's prior by this much."""
    design = LAW.design(X)
    prior = LAW.predict_log(design.parameters(design.mean), columns_of(X))
    rng = np.random.default_rng(3)
    own = {name: rng.normal(0, spread, 2) for name in LLMS}
    noise = rng.normal(0, 0.03, prior.shape)
    return np.exp(prior + noise + np.array([own[name] for name in X["llm_id"]]))


def trained(X: pd.DataFrame, y_ms: np.ndarray, told=None) -> Roofline:
    frame = pd.DataFrame(y_ms, X.index, TARGETS)
    return Roofline(None, PROFILES, 0).fit(TrainingRows(X, frame), told)


def widths(model: Roofline, X: pd.DataFrame) -> np.ndarray:
    """Return the logarithm of the upper over the lower end of the 90% intervals of the ITL."""
    low, high = np.quantile(model.sample(X)[..., 1], (0.05, 0.95), axis=0)
    return np.log(high / low)


def test_an_engine_whose_llms_differ_more_is_less_certain_of_another_llm() -> None:
    parts = [rows(engine=name) for name in ("vllm", "sglang")]
    X = pd.concat(parts, ignore_index=True)
    made = [latencies(part, spread) for part, spread in zip(parts, (0.05, 0.5), strict=True)]
    y_ms = np.concatenate(made)
    factors = unseen_factors(fit_law(LAW, X, y_ms), X)
    assert trained(X, y_ms).posterior_.unseen_factors.keys() == factors.keys()
    for group in ("support ttft_offset", "support itl_offset"):
        alike, strange = (factors[unseen_key(name, group)] for name in ("vllm", "sglang"))
        assert alike < 1 < strange


def test_the_fine_tune_of_an_llm_is_left_out_with_it() -> None:
    X = rows(users=(1,))
    again = X.assign(llm_id="fine-tune of " + X["llm_id"])
    assert architecture_names(again).tolist() == architecture_names(X).tolist()
    assert architecture_names(X).nunique() == len(LLMS)


def test_a_measured_llm_is_surer_near_the_measured_load_than_far_from_it() -> None:
    others = rows([name for name in LLMS if name != ASKED])
    own = rows([ASKED], ["8xH100-80GB"])
    at = (own["users"] == 4).to_numpy()
    y_ms = pd.DataFrame(latencies(own, 0.1), own.index, TARGETS)
    model = trained(others, latencies(others, 0.1), TrainingRows(own[at], y_ms[at]))
    of_users = dict(zip(USERS, widths(model, own), strict=True))
    assert of_users[4] < of_users[16] < of_users[256]
    assert f"{ASKED}|vllm|Hopper" in model.posterior_.own
    blind = trained(others, latencies(others, 0.1))
    assert f"{ASKED}|vllm|Hopper" not in blind.posterior_.own
    assert of_users[4] < widths(blind, own)[1]


def test_a_maker_whom_nobody_measured_is_less_certain() -> None:
    X = rows()
    model = trained(X, latencies(X, 0.1))
    known, unknown = (
        widths(model, rows([ASKED], [name], [8]))[0] for name in ("8xH100-80GB", "8xMI300X-192GB")
    )
    assert load_gpu(GPUS, "MI300X-192GB").maker == "AMD"
    assert unknown > 1.2 * known


def test_what_the_asker_measured_is_believed_however_far_from_the_law_it_is() -> None:
    X = rows()
    y_ms = latencies(X, 0.1)
    is_asked = (X["llm_id"] == ASKED).to_numpy()
    known, others_ms = X[~is_asked].reset_index(drop=True), y_ms[~is_asked]
    slow, slow_ms = X[is_asked].reset_index(drop=True), 4 * y_ms[is_asked]
    is_told = ((slow["users"] == 64) & (slow["gpu_profile_id"] == "8xH100-80GB")).to_numpy()
    told = TrainingRows(slow[is_told], pd.DataFrame(slow_ms, columns=TARGETS)[is_told])
    model = trained(known, others_ms, told)

    factors = np.median(model.sample(slow), axis=0) / slow_ms
    assert np.abs(np.log(factors[is_told])).max() < np.log(1.1)
    # Other loads and the other GPU profile follow, and less surely.
    assert np.abs(np.log(factors)).max() < np.log(1.6)
    assert widths(model, slow)[is_told] < widths(model, slow[~is_told]).min()
    # Before it was told, the model is that of the others.
    assert model.untold_ is not None
    untold = trained(known, others_ms)
    assert np.array_equal(model.untold_.sample(slow), untold.sample(slow))


def test_a_fit_from_nearly_the_same_points_is_where_all_iterations_end() -> None:
    X = rows()
    y_ms = latencies(X, 0.1)
    n_told = 3
    near = fit_law(LAW, X[:-n_told], y_ms[:-n_told]).posterior
    further = fit_law_near(LawProblem.of(LAW, X, y_ms), near)
    whole = fit_law(LAW, X, y_ms)
    phi, exact = (it.posterior.most_likely(X) for it in (further, whole))
    missed = LAW.predict_log(phi, columns_of(X)) - LAW.predict_log(exact, columns_of(X))
    assert np.abs(missed).max() < 0.02

"""Latencies of vLLM on H100 in an open loop, of an LLM that none of the rows is known of.

Leave one LLM out over the 20 clean stages of `open_loop/h100_vllm_stages.csv` of the mirror (16
runs by others, of 4 LLMs; not shipped): the efficiencies of the law of a step, shared by all
LLMs, and what the deployment adds to a request are fitted to the stages of three through the
closed form; the fourth is predicted by simulating its requests. Beside it: told by one probe (the
held-out LLM's slowest stage), and zero-shot, from what ships, without any of these rows.

    SEXTANT_MIRROR=… .venv/bin/python benchmarks/open_loop.py [--stages]
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sextant.ask.source import load_sources
from sextant.facts.llm import LLM, load_llm
from sextant.law.fact_rows import fact_rows
from sextant.law.means import BatchLimits, MeanLoad, open_loop, saturation_rps
from sextant.law.posterior import columns_of
from sextant.law.probed_server import ProbeResult, fit_laws_to_probe
from sextant.law.roofline import Roofline
from sextant.law.terms import NAMES, PARAMETERS, batch_limits, step_law
from sextant.points.frame import TARGETS, FactTables, at_percentile, has_latency
from sextant.predict.predictor import TrainingRows
from sextant.simulate.server import NAMES as TERMS
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.workload.requests import RequestStream

MIRROR = Path(os.environ.get("SEXTANT_MIRROR", "missing"))
SOURCE = "archive:inferencex"
PROMPTS, BLOCK_TOKENS = 100, 16
TIMEOUT_S = 300.0
PRIORS = {name: (each.prior, each.sd) for name, each in PARAMETERS.items()} | {
    # Memory of an H100 gives up to nine tenths of its bandwidth; experts' weights the same share.
    "bandwidth": (0.88, 0.06),
    "expert_bandwidth": (1.0, 0.1),
    # Products of tokens that decode overlap with reading the weights, and so seem faster.
    "flops": (1.0, 0.5),
    "expert_flops": (1.0, 0.3),
    # Mixed steps run without full CUDA graphs: all sequences wait for it, not one's first token.
    "prompt_launch": (0.1, 0.7),
    "ttft_offset": (1.0, 1e-3),
    "itl_offset": (1.0, 1e-3),
}
"""Median and deviation of the logarithm; of experts over what dense weights and products reach.
Products are here those of tokens that decode; a prompt's keep the law's own share of the peak,
since nearly all prompts are cached and so tell nothing of it."""
PRIOR_MEAN = np.log([PRIORS[name][0] for name in NAMES])
PRIOR_SD = np.array([PRIORS[name][1] for name in NAMES])
TTFT_NOISE, ITL_NOISE = 0.08, 0.03
NEAR_SATURATION = 0.98
LOST = 10.0
"""Error of the mean TTFT, over the measured one, that only a queue without end has."""
MEASURED = ("ttft_mean_ms", "e2e_mean_ms", "ttft_p99_ms", "ttft_p50_ms")


def llms() -> dict[str, LLM]:
    """Return the facts of the four LLMs; Llama-2-70B is Llama-3.1-70B with fewer words."""
    configs = MIRROR / "hf_configs"
    found = {
        "Llama-2-7b-hf": load_llm(configs / "llama-2-7b-hf.json"),
        "CodeLlama-34b-Instruct-hf": load_llm(configs / "codellama-34b-instruct-hf.json"),
        "Mixtral-8x7B-v0.1": load_llm(configs / "mistralai--Mixtral-8x7B-v0.1.json"),
    }
    config = json.loads((configs / "meta-llama--Meta-Llama-3.1-70B.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config | {"vocab_size": 32000}))
        found["Llama-2-70b-hf"] = load_llm(path)
    return found


class Study(NamedTuple):
    """The stages and what is known of their servers before."""

    stages: pd.DataFrame
    model: Roofline
    X: pd.DataFrame

    @property
    def facts(self) -> dict[str, np.ndarray]:
        return columns_of(self.X)

    def limits(self, rows: np.ndarray) -> BatchLimits:
        stages = self.stages.iloc[rows]
        names = ("max_num_seqs", "max_num_batched_tokens")
        return BatchLimits(*(stages[name].to_numpy(float) for name in names), self.kv_tokens[rows])

    def load(self, rows: np.ndarray) -> MeanLoad:
        stages = self.stages.iloc[rows]
        tokens = stages["prompt_len_mean"].to_numpy()
        cached = np.ceil(tokens / BLOCK_TOKENS - 1) * BLOCK_TOKENS
        return MeanLoad(tokens, stages["output_len"].to_numpy(float), cached, gap_cv2=0.0)

    @property
    def kv_tokens(self) -> np.ndarray:
        phi = np.tile(PRIOR_MEAN, (len(self.X), 1))
        return np.asarray(batch_limits(phi, self.facts).kv_tokens)

    def rows_of(self, llm_id: str, *, is_held_out: bool = True) -> np.ndarray:
        is_it = (self.stages["model"] == llm_id).to_numpy()
        chosen = is_it if is_held_out else ~is_it & ~self.stages["saturated"].to_numpy()
        return np.flatnonzero(chosen)


def read_study() -> Study:
    """Return the stages with the facts of their servers, and the predictor of what ships."""
    stages = pd.read_csv(MIRROR / "open_loop" / "h100_vllm_stages.csv")
    known, _ = load_sources([SOURCE])
    model = Roofline(None, known.profiles, 42)
    latencies = at_percentile(known.points, (50, 50))
    latencies = latencies[has_latency(latencies)].reset_index(drop=True)
    X = model.design(latencies, FactTables(known.llms, known.profiles))
    model.fit(TrainingRows(X, latencies[TARGETS]))
    keys = pd.DataFrame(
        {
            "llm_id": stages["model"],
            "gpu_profile_id": stages["tp"].astype(int).astype(str) + "xH100-80GB",
            "users": 1.0,
            "input_tokens": stages["prompt_len_mean"],
            "output_tokens": stages["output_len"].astype(float),
            "engine": "vllm",
            "engine_version": "0.15.1",
            "precision": "bf16",
            "kv_precision": "bf16",
        }
    )
    facts = FactTables(llms() | known.llms, known.profiles)
    return Study(stages, model, fact_rows(keys, facts))


def laws(scales: np.ndarray, facts: dict[str, np.ndarray]) -> StepLaw:
    """Return the step laws of stages, of standard deviations from the priors."""
    index, n = {name: i for i, name in enumerate(NAMES)}, len(facts["users"])
    phi = np.tile(PRIOR_MEAN + PRIOR_SD * scales, (n, 1))
    phi[:, index["expert_bandwidth"]] += phi[:, index["bandwidth"]]
    phi[:, index["expert_flops"]] += phi[:, index["flops"]]
    law = step_law(phi, facts)
    for name in ("flops", "expert_flops"):
        phi[:, index[name]] = np.log(PARAMETERS[name].prior)
    prefill = step_law(phi, facts)
    own: dict[str, Any] = {
        "prefill_token_ms": prefill.prefill_token_ms,
        "prefill_pair_ms": prefill.prefill_pair_ms,
        "prompt_step_ms": facts["n_layers"] * np.exp(phi[:, index["prompt_launch"]]),
        "request_ms": np.exp(phi[:, index["prompt"]]),
    }
    return replace(law, **own)


def fit(study: Study, rows: np.ndarray) -> np.ndarray:
    """Return how far the parameters are from their priors, fitted to these stages."""
    facts = {name: values[rows] for name, values in study.facts.items()}
    limits, load = study.limits(rows), study.load(rows)
    stages = study.stages.iloc[rows]
    rates = stages["rate"].to_numpy(float)
    # First stages' means hold compilations that no law can know: medians do not.
    known = [np.log(stages[name].to_numpy()) for name in ("ttft_p50_ms", "tpot_true_mean_ms")]

    def residuals(scales: np.ndarray) -> np.ndarray:
        law = laws(scales, facts)
        most = NEAR_SATURATION * saturation_rps(law, limits, load)
        # Beyond saturation there is no mean; a law that far off still has a slope.
        beyond = np.maximum(np.log(rates / most), 0)
        means = open_loop(law, limits, load, np.minimum(rates, most))
        ttft = (np.log(means.ttft_ms) + beyond - known[0]) / TTFT_NOISE
        itl = (np.log(means.itl_ms) + beyond - known[1]) / ITL_NOISE
        return np.concatenate([ttft, itl, scales])

    return least_squares(residuals, np.zeros(len(PRIOR_SD)), loss="soft_l1", max_nfev=50).x


def simulated(study: Study, row: int, law: StepLaw) -> dict[str, float]:
    """Return the latencies of one stage's requests, the first of each prompt not cached."""
    stage = study.stages.iloc[row]
    n = int(stage["rate"] * stage["duration_s"])
    ids = np.random.default_rng(row).integers(PROMPTS, size=n)
    is_first = stage["stage"] == 0
    warm = np.empty(0, int) if is_first else np.arange(PROMPTS)
    arrival_s = np.arange(n) / stage["rate"]
    # A later stage finds the prompts of the first one in the cache: they are sent before it.
    arrival_s = np.concatenate([np.arange(len(warm)) * 1.0, arrival_s + 2.0 * len(warm)])
    inputs = np.full(len(arrival_s), round(stage["prompt_len_mean"]))
    outputs = np.full(len(arrival_s), stage["output_len"])
    ids = np.concatenate([warm, ids])
    requests = RequestStream.of(arrival_s, inputs, outputs, ids, inputs)
    scheduler = Scheduler(
        int(study.kv_tokens[row]),
        int(stage["max_num_seqs"]),
        int(stage["max_num_batched_tokens"]),
        timeout_s=TIMEOUT_S,
    )
    result = simulate(requests, scheduler, law, warmup_s=2.0 * len(warm))
    ttft_ms, e2e_ms = (1e3 * each[result.is_counted] for each in (result.ttft_s, result.e2e_s))
    answered = np.isfinite(e2e_ms)
    ttft_ms, e2e_ms = ttft_ms[answered], e2e_ms[answered]
    return {
        "ttft_mean_ms": ttft_ms.mean(),
        "e2e_mean_ms": e2e_ms.mean(),
        "ttft_p99_ms": np.quantile(ttft_ms, 0.99),
        "ttft_p50_ms": np.median(ttft_ms),
        "ok_fraction": answered.mean(),
    }


def one(law: StepLaw, place: int) -> StepLaw:
    """Return one of the laws."""
    terms = [np.broadcast_to(getattr(law, n), np.shape(law.floor_ms))[place] for n in TERMS]
    return StepLaw.of(np.array(terms))


def held_out(study: Study, llm_id: str) -> dict[str, list[StepLaw]]:
    """Return the laws of an LLM's stages, by each way to know them."""
    rows = study.rows_of(llm_id)
    facts = {name: values[rows] for name, values in study.facts.items()}
    fitted = laws(fit(study, study.rows_of(llm_id, is_held_out=False)), facts)
    known = [one(fitted, place) for place in range(len(rows))]
    shipped = [StepLaw.of(each[0]) for each in study.model.step_laws(study.X.iloc[rows], 2, 0)]
    return {"fitted": known, "probe": told(study, rows, known), "zero-shot": shipped}


def told(study: Study, rows: np.ndarray, known: Sequence[StepLaw]) -> list[StepLaw]:
    """Return the laws, told by the LLM's stage of the lowest rate."""
    clean = study.stages.iloc[rows].query("not saturated")
    probe = int(np.argmin(clean["rate"].to_numpy()))
    probed = clean.index[probe]
    at = list(rows).index(probed)
    stage = study.stages.loc[probed]
    scheduler = Scheduler(int(study.kv_tokens[probed]), 128, 2048)
    load = MeanLoad(
        *(float(np.asarray(each).ravel()[0]) for each in study.load(np.array([probed])))
    )
    probe = ProbeResult(
        load,
        ttft_ms=stage["ttft_p50_ms"],
        itl_ms=stage["tpot_true_mean_ms"],
        request_rate_rps=stage["rate"],
    )
    law = known[at].array()
    fitted_law = fit_laws_to_probe(law[None], scheduler, probe).values[0]
    scales = fitted_law / np.where(law == 0, 1, law)
    return [StepLaw.of(law.array() * np.where(law.array() == 0, 0, scales)) for law in known]


def judge(study: Study) -> pd.DataFrame:
    """Return a row for each stage and way: what was measured and what is predicted."""
    found = []
    for llm_id in study.stages["model"].unique():
        rows = study.rows_of(llm_id)
        for way, known in held_out(study, llm_id).items():
            for row, law in zip(rows, known, strict=True):
                stage = study.stages.iloc[row]
                made = simulated(study, row, law)
                named = {"way": way, "llm": llm_id, **stage[["workload", "stage", "rate"]]}
                named |= {"saturated": stage["saturated"], "ok": stage["n_ok"] / stage["n_sent"]}
                named |= {f"{name} predicted": made[name] for name in MEASURED}
                found.append(named | dict(stage[list(MEASURED)]) | {"ok p": made["ok_fraction"]})
    return pd.DataFrame(found)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return MAPE of each way over the clean stages, a probed stage not counted.

    Stages that a way takes for saturated have no latency to compare: they are counted apart.
    """
    clean = table[~table["saturated"]].copy()
    for name in MEASURED:
        clean[name] = (clean[f"{name} predicted"] / clean[name] - 1).abs()
    probe = clean[clean["way"] == "probe"]
    clean = clean.drop(probe.groupby("llm")["rate"].idxmin())
    is_lost = clean["ttft_mean_ms"] > LOST
    kept, lost = clean[~is_lost], clean[is_lost].groupby("way").size()
    means = kept.groupby("way")[list(MEASURED)].mean()
    later = kept[kept["stage"] > 0].groupby("way")["ttft_p99_ms"].mean()
    median = kept.groupby("way")["ttft_p99_ms"].median()
    means = 100 * means.assign(**{"ttft_p99_ms, later": later, "ttft_p99_ms, median": median})
    counts = {"stages": kept.groupby("way").size(), "taken for saturated": lost}
    return means.assign(**counts).fillna({"taken for saturated": 0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", action="store_true", help="print every stage")
    options = parser.parse_args()
    table = judge(read_study())
    print(summary(table).round(1).to_string())
    if options.stages:
        print(table.round(2).to_string())
    else:
        print(table[table["saturated"]].round(2).to_string())


if __name__ == "__main__":
    main()

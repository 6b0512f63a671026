"""Prefill and decode apart, simulated from what ships, beside measurements.

DeepSeek-R1 on GB200, H200 and H100 under SGLang and TensorRT-LLM (`disaggregated/` of the mirror,
120 points, an LLM of which no source has a row): mean TTFT and TPOT of users who each send ten
requests, and the requests/s that follow. Then gpt-oss-120b on 16 H200 under vLLM at 45 requests/s
(`llmd_guides/pd_h200.csv`).

    SEXTANT_MIRROR=… .venv/bin/python benchmarks/disaggregated.py [--points]
"""

import argparse
import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.answer.pools import handover
from sextant.ask.scheduling import Settings
from sextant.ask.source import load_sources
from sextant.facts.gpu import GPUProfile, profile_of_id
from sextant.facts.llm import LLM, load_llm, served
from sextant.law.fits import fit_or_restore
from sextant.law.posterior import columns_of
from sextant.law.roofline import Roofline
from sextant.law.terms import batch_limits, step_law
from sextant.points.frame import TARGETS, FactTables, at_percentile, has_latency
from sextant.predict.predictor import TrainingRows
from sextant.simulate.pools import ReplicaPool, simulate_apart, simulate_users_apart
from sextant.simulate.server import NAMES, OK, Scheduler, StepLaw
from sextant.simulate.simulation import Simulation
from sextant.workload.requests import RequestStream

MIRROR = Path(os.environ.get("SEXTANT_MIRROR", "missing"))
SOURCES = ["archive:inferencex", "archive:inferencex-other-engines", "archive:nvidia-perf"]
GPUS = {"gb200": "GB200-186GB", "h200_sxm": "H200-141GB", "h100_sxm": "H100-80GB"}
LOAD = ["backend", "system", "precision", "isl", "osl", "concurrency"]
REQUESTS_A_USER = 10
SPREAD = 1 / 9
"""Lengths are drawn within this share of their mean: the client draws them from 0.8 to 1.0 of the
nominal ones (`--random-range-ratio 0.8` of sa-bench in github.com/NVIDIA/srt-slurm)."""
MEAN_SHARE = 0.9
"""Mean length over the nominal one."""
SLOTS = Path(__file__).with_name("disaggregated_slots.tsv")
"""`max_batch_size` of TensorRT-LLM's decode workers, for each copy of attention, as the recipes of
github.com/NVIDIA/srt-slurm (recipes/trtllm) name it; which recipe a point ran is in `nvidia-master`
of github.com/SemiAnalysisAI/InferenceX at 0004cf5. Only that of configuration 423 drafts, which is
taken to have run without, as its TPOT is. Other points have the engine's default: SGLang's recipes
have room for all users, the oldest three of TensorRT-LLM are not there."""
REPEATS = 0.01
"""Share by which requests/s of one layout differ between two runs, in the median of the mirror's
repeated rows: of layouts that differ by less, a run of each does not say which is better."""


def fitted() -> tuple[Roofline, dict[str, GPUProfile], dict[str, LLM]]:
    """Return the predictor of the sources, and their facts."""
    known, _ = load_sources(SOURCES)
    model = Roofline(None, known.profiles, 42)
    latencies = at_percentile(known.points, (50, 50))
    latencies = latencies[has_latency(latencies)].reset_index(drop=True)
    X = model.design(latencies, FactTables(known.llms, known.profiles))
    fit_or_restore(model, TrainingRows(X, latencies[TARGETS]), None)
    return model, known.profiles, known.llms


def servers(
    model: Roofline, keys: pd.DataFrame, facts: FactTables, settings: Sequence[Settings]
) -> tuple[list[StepLaw], list[Scheduler]]:
    """Return the likeliest law and the scheduler of one replica of each row with its settings."""
    X = model.design(keys.assign(users=1.0), facts)
    phi, known = model.posterior_.most_likely(X), columns_of(X)
    law, limits = step_law(phi, known), batch_limits(phi, known)
    n = len(keys)
    terms = np.stack([np.broadcast_to(getattr(law, name), n) for name in NAMES], axis=1)
    found = []
    for stated, tokens, key in zip(settings, limits.kv_tokens, keys.itertuples(), strict=True):
        kv_tokens = int(tokens)
        devices = facts.profiles[key.gpu_profile_id].devices
        engine = key.engine, key.engine_version, key.data_parallel
        found.append(stated.scheduler(kv_tokens, kv_tokens, devices, *engine))
    # Statistics of load tests over the law: those of ITL belong to the steps.
    terms[:, [NAMES.index(name) for name in NAMES if name.endswith("_ms")]] *= np.exp(phi[:, -1:])
    return [StepLaw.of(values) for values in terms], found


def requests(inputs: float, outputs: float, n: int, arrival_s: np.ndarray) -> RequestStream:
    """Return requests of lengths around these means."""
    factors = np.random.default_rng(0).uniform(1 - SPREAD, 1 + SPREAD, (2, n))
    return RequestStream.of(
        arrival_s, np.round(inputs * factors[0]), np.round(outputs * factors[1])
    )


def means(made: Simulation) -> tuple[float, float]:
    """Return mean TTFT and mean TPOT in ms."""
    is_ok = made.status == OK
    return 1e3 * made.ttft_s[is_ok].mean(), 1e3 * np.nanmean(made.tpot_s[is_ok])


def decode_settings(table: pd.DataFrame) -> list[Settings]:
    """Return the settings of each point's decode workers: those that its recipe states."""
    slots = pd.read_csv(SLOTS, sep="\t")
    stated = table.merge(slots, how="left", validate="many_to_one")["decode_slots"]
    return [Settings(max_num_seqs=None if n != n else int(n)) for n in stated]


def deepseek(model: Roofline) -> pd.DataFrame:
    """Return one row per point of `disaggregated/`."""
    table = pd.read_csv(MIRROR / "disaggregated" / "silicon_disagg.csv")
    settings = {"prefill": [Settings()] * len(table), "decode": decode_settings(table)}
    llm = load_llm(MIRROR / "hf_configs" / "deepseek-ai--DeepSeek-V3.json")
    sizes = {pool: table[f"{pool}_gpus_per_worker"].astype(int) for pool in ("prefill", "decode")}
    pools, profiles = {}, {}
    for pool, n in sizes.items():
        names = n.astype(str) + "x" + table["system"].map(GPUS)
        profiles |= {name: profile_of_id(name) for name in names.unique()}
        keys = pd.DataFrame(
            {
                "llm_id": "deepseek",
                "gpu_profile_id": names,
                "input_tokens": MEAN_SHARE * table["isl"],
                "output_tokens": MEAN_SHARE * table["osl"],
                "engine": table["backend"],
                "engine_version": table["backend_version"],
                "precision": table["precision"].map({"fp8": "fp8", "fp4": "nvfp4"}),
                "data_parallel": table[f"{pool}_attention_dp_size"],
                "expert_parallel": table[f"{pool}_moe_ep_size"],
                "source": "other",
            }
        )
        facts = FactTables({"deepseek": llm}, profiles)
        pools[pool] = (keys, *servers(model, keys, facts, settings[pool]))
    rows = []
    for place, point in table.iterrows():
        of = {}
        for pool, (_, laws, plans) in pools.items():
            of[pool] = ReplicaPool(plans[place], laws[place], int(point[f"{pool}_num_workers"]))
        keys = pools["prefill"][0].loc[place]
        between = handover(llm, keys["engine"], profiles[keys["gpu_profile_id"]])
        users = int(point["concurrency"])
        n = users * REQUESTS_A_USER
        sent = requests(keys["input_tokens"], keys["output_tokens"], n, np.zeros(n))
        made = simulate_users_apart(users, sent, of["prefill"], of["decode"], between)
        ttft_ms, tpot_ms = means(made)
        rows.append(
            {
                **point[LOAD],
                "gpus": point["prefill_gpus_total"] + point["decode_gpus_total"],
                "TTFT": point["silicon_ttft_ms"],
                "predicted TTFT": ttft_ms,
                "TPOT": point["silicon_tpot_ms"],
                "predicted TPOT": tpot_ms,
                "requests/s": point["implied_rate_rps"],
                # As the table implies the measured one: by the nominal length.
                "predicted requests/s": 1e3 * users / (ttft_ms + (point["osl"] - 1) * tpot_ms),
            }
        )
    return pd.DataFrame(rows)


def layouts_named_right(table: pd.DataFrame, least: float = 0.0) -> tuple[int, int]:
    """Return of how many pairs of layouts at one load the better one a GPU is named, and of all.

    Pairs whose measured requests/s a GPU differ by no more than the share `least` do not count.
    """
    rates = ["requests/s", "predicted requests/s"]
    a_gpu = np.log(table[rates].div(table["gpus"], axis=0)).to_numpy()
    pairs = [
        a_gpu[first] - a_gpu[second]
        for rows in table.groupby(LOAD).indices.values()
        for first, second in combinations(rows, 2)
    ]
    measured, predicted = np.reshape(pairs, (-1, 2)).T
    differs = np.abs(measured) > least
    is_right = np.sign(measured) == np.sign(predicted)
    return int((is_right & differs).sum()), int(differs.sum())


def gpt_oss(model: Roofline, profiles: dict[str, GPUProfile], llms: dict[str, LLM]) -> pd.DataFrame:
    """Return the row of gpt-oss-120b at a request rate: eight prefill replicas, two of decode."""
    point = pd.read_csv(MIRROR / "llmd_guides" / "pd_h200.csv").iloc[0]
    llm_id, inputs, outputs = "openai__gpt-oss-120b", 5000.0, 250.0
    names = ("1xH200-141GB", "4xH200-141GB")
    keys = pd.DataFrame(
        {
            "llm_id": llm_id,
            "gpu_profile_id": names,
            "input_tokens": inputs,
            "output_tokens": outputs,
            "engine": "vllm",
            "engine_version": "0.19.0",
            "precision": "mxfp4",
            "data_parallel": 1,
            "source": "archive:inferencex",
        }
    )
    laws, plans = servers(model, keys, FactTables(llms, profiles), [Settings()] * len(keys))
    counts = int(point["prefill_workers"]), int(point["decode_workers"])
    pools = [ReplicaPool(*each) for each in zip(plans, laws, counts, strict=True)]
    llm = served(llms[llm_id], "mxfp4")
    n = int(point["ok"])
    arrival_s = np.cumsum(np.random.default_rng(0).exponential(1 / float(point["target"]), n))
    sent = requests(inputs, outputs, n, arrival_s)
    made = simulate_apart(sent, *pools, handover(llm, "vllm", profiles[names[0]]))
    ttft_ms, _ = means(made)
    found = {"TTFT": 1e3 * point["ttft_mean_s"], "predicted TTFT": ttft_ms}
    e2e_ms = 1e3 * np.nanmean(made.e2e_s)
    return pd.DataFrame([found | {"E2E": 1e3 * point["latency_mean_s"], "predicted E2E": e2e_ms}])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", action="store_true", help="print every point")
    options = parser.parse_args()
    model, profiles, llms = fitted()
    table = deepseek(model)
    if options.points:
        print(table.round(1).to_string())
    for name in ("TTFT", "TPOT", "requests/s"):
        off = 100 * (table[f"predicted {name}"] / table[name] - 1).abs()
        ratio = (table[f"predicted {name}"] / table[name]).median()
        print(f"{name}: off by {off.median():.1f}% (median), {off.mean():.1f}% (mean); the median")
        print(f"  prediction is {ratio:.2f} times the measurement")
    for least in (0.0, REPEATS):
        right, n_pairs = layouts_named_right(table, least)
        print(f"better of two layouts a GPU at one load: right in {right} of {n_pairs} pairs")
        print(f"  that differ by more than {least:.0%}")
    print(gpt_oss(model, profiles, llms).round(1).to_string(index=False))


if __name__ == "__main__":
    main()

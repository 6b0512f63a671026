"""Speculative decoding and open-loop load, predicted from what ships, beside measurements.

`speculation/` of the mirror; none of its rows is a source. First gpt-oss-120b on one H200: what one
EAGLE-3 draft token gains in requests/s, with the accepted length that the engine counted and with
the one that is expected without. Then Llama-3-8B on one H100 at the rates that vLLM 0.11 keeps up
with, simulated; of the two other set-ups one has a prefix cache whose hits are not stated, one is
the engine V0, which has no law.

    SEXTANT_MIRROR=… .venv/bin/python benchmarks/speculation.py
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.ask.case import Case, read_case
from sextant.ask.forecast import MEDIANS, fit_medians
from sextant.ask.laws import candidate_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.law.means import BatchLimits, MeanLoad, closed_loop
from sextant.law.roofline import Roofline
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import RequestStream

MIRROR = Path(os.environ.get("SEXTANT_MIRROR", "missing"))
SOURCES = ("archive:inferencex",)
UNSATURATED = 0.97
"""Share of the rate asked that is completed where the server keeps up."""


def subject(inputs: float, outputs: float, gpu_profile_id: str, **how: object) -> Case:
    """Return an LLM on one GPU profile, for requests of these mean lengths."""
    requests = RequestLengths(Length(inputs, inputs), Length(outputs, outputs))
    question = Question(
        MEDIANS, sources=SOURCES, requests=requests, gpu_profile_ids=(gpu_profile_id,), **how
    )
    return read_case(question, need_prices=False)


def likeliest(of: Case, model: Roofline) -> tuple[StepLaw, Scheduler]:
    """Return the likeliest law of a step, and the scheduler."""
    (replica,) = candidate_laws(of, Settings(), 0, model).servers.values()
    return replica.law(0), replica.scheduler


def speculation() -> pd.DataFrame:
    """Return one row per number of users: the gain in requests/s, measured and predicted."""
    table = pd.read_csv(MIRROR / "speculation" / "gptoss_h200_eagle3.csv")
    first = table.drop_duplicates(["n_draft", "users"]).set_index(["n_draft", "users"])
    llm = {"llm_id": "openai__gpt-oss-120b"}
    place = first["mean_input_tokens"].mean(), first["mean_output_tokens"].mean(), "1xH200-141GB"
    model = fit_medians(subject(*place, **llm))
    ways = {
        "none": {},
        "counted": {"acceptance": first.loc[1, "accepted_length"].mean()},
        "expected": {},
    }
    rates, users = {}, np.array(first.loc[1].index, float)
    for name, given in ways.items():
        drafts = {} if name == "none" else {"speculative": "eagle3", "draft_tokens": 1}
        law, scheduler = likeliest(subject(*place, **llm, **drafts, **given), model)
        load = MeanLoad(place[0], place[1])
        rates[name] = closed_loop(law, BatchLimits.of(scheduler), load, users).request_rate_rps
    rate = first["request_throughput_rps"]
    return pd.DataFrame(
        {
            "users": users.astype(int),
            "measured %": 100 * (rate.loc[1].to_numpy() / rate.loc[0].to_numpy() - 1),
            "predicted %, length as counted": 100 * (rates["counted"] / rates["none"] - 1),
            "predicted %, length as expected": 100 * (rates["expected"] / rates["none"] - 1),
            "measured rps, no draft": rate.loc[0].to_numpy(),
            "predicted rps, no draft": rates["none"],
        }
    )


def stages() -> pd.DataFrame:
    """Return one row per stage that the server kept up with: latencies measured and simulated."""
    table = pd.read_csv(MIRROR / "speculation" / "kubecon_stages.csv")
    is_kept = table["completed_rps"] >= UNSATURATED * table["rate_asked_rps"]
    kept = table[is_kept & (table["set_up"] == "vllm")]
    config = MIRROR / "hf_configs" / "meta-llama--Meta-Llama-3.1-8B.json"
    lengths = kept["input_tokens_mean"].mean(), kept["output_tokens_mean"].mean()
    of = subject(*lengths, "1xH100-80GB", hf_config=config, dtype="bf16")
    law, scheduler = likeliest(of, fit_medians(of))
    rows = []
    for _, stage in kept.iterrows():
        n = int(stage["requests_sent"])
        rng = np.random.default_rng(int(stage["stage"]))
        arrival_s = np.cumsum(rng.exponential(1 / stage["rate_sent_rps"], n))
        inputs = np.full(n, round(stage["input_tokens_mean"]))
        outputs = np.full(n, round(stage["output_tokens_mean"]))
        plan = replace(scheduler, max_num_seqs=int(stage["max_num_seqs"]), is_asynchronous=False)
        made = simulate(RequestStream.of(arrival_s, inputs, outputs), plan, law)
        rows.append(
            {
                "rate": stage["rate_asked_rps"],
                "TTFT p50": stage["ttft_p50_ms"],
                "predicted TTFT p50": 1e3 * np.nanmedian(made.ttft_s),
                "TPOT": stage["tpot_from_e2e_mean_ms"],
                "predicted TPOT": 1e3 * np.nanmean(made.tpot_s),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    gains = speculation()
    print(gains.round(2).to_string(index=False))
    for way in ("counted", "expected"):
        own = gains[f"predicted %, length as {way}"]
        is_right = np.sign(own) == np.sign(gains["measured %"])
        off = (own - gains["measured %"]).abs()
        print(
            f"{way}: sign right {is_right.mean():.0%}, off by {off.mean():.1f} points, at most "
            f"{off.max():.1f}"
        )
    table = stages()
    print(table.round(2).to_string(index=False))
    for name in ("TTFT p50", "TPOT"):
        off = (table[f"predicted {name}"] / table[name] - 1).abs()
        print(f"{name}: off by {100 * off.mean():.1f}% (mean), {100 * off.median():.1f}% (median)")


if __name__ == "__main__":
    main()

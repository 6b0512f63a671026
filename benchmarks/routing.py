"""Round robin against routing by prefix, simulated from what ships beside measurements.

`llmd_guides/routing_rate_ladders.csv` of the mirror: Qwen3-32B on 8 x 2 H100 under vLLM, 16 rates
upwards on one deployment, so that caches carry over. Prompts are of 150 groups, each with 6,000
tokens in common (llm-d's guide), and 1,200 of their own; outputs have 1,000 tokens.

    SEXTANT_MIRROR=... .venv/bin/python benchmarks/routing.py
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.ask.forecast import MEDIANS
from sextant.ask.laws import find_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.simulate.simulation import simulate
from sextant.workload.lengths import Length
from sextant.workload.lengths import RequestLengths as Lengths
from sextant.workload.requests import RequestStream

MIRROR = Path(os.environ.get("SEXTANT_MIRROR", "missing"))
LLM = Path("resources/llms/Qwen__Qwen3-32B.json")
GROUPS, PREFIX, QUESTION, OUTPUT = 150, 6000, 1200, 1000
REPLICAS = 8
STAGES = {3: 60, 10: 200, 15: 300, 20: 760, 22: 748, 25: 750, 30: 750, 35: 735, 40: 1520} | {
    43: 1548,
    46: 1518,
    49: 1470,
    52: 1508,
    55: 1485,
    57: 1482,
    60: 1500,
}
"""Requests of each rate: those that the same ladder's other LLM reports."""
APART_S = 600.0
"""Between the starts of two rates: by then all of the last one are answered."""


def main() -> None:
    """Print the ladder."""
    lengths = Lengths(Length(PREFIX + QUESTION, PREFIX + QUESTION), Length(OUTPUT, OUTPUT))
    question = Question(MEDIANS, hf_config=LLM, gpu_profile_ids=("2xH100-80GB",), requests=lengths)
    offer = find_laws(question, Settings(), 0, need_prices=False)
    replica = offer.servers["2xH100-80GB"]
    rng, arrivals, stages = np.random.default_rng(0), [], []
    for place, (rate, n) in enumerate(STAGES.items()):
        gaps = rng.exponential(1 / rate, n)
        arrivals.append(APART_S * place + gaps.cumsum() - gaps[0])
        stages.append(np.full(n, rate))
    arrival_s, stage = np.concatenate(arrivals), np.concatenate(stages)
    n = len(arrival_s)
    group = np.concatenate([rng.permutation(m) % GROUPS for m in STAGES.values()])
    requests = RequestStream.of(
        arrival_s, np.full(n, PREFIX + QUESTION), np.full(n, OUTPUT), group, np.full(n, PREFIX)
    )
    table = pd.read_csv(MIRROR / "llmd_guides" / "routing_rate_ladders.csv")
    table = table[table["llm"] == "Qwen/Qwen3-32B"]
    measured = table.pivot_table("output_tok_s", "rate_asked_rps", "arm")
    rows = {}
    for arm, router in (("round_robin", "round_robin"), ("prefix_aware", "prefix")):
        made = simulate(
            requests, replica.scheduler, replica.law(0), n_replicas=REPLICAS, router=router
        )
        end_s = pd.Series(made.arrival_s + made.e2e_s).groupby(stage).max()
        start_s = pd.Series(arrival_s).groupby(stage).min()
        rows[f"{arm}_simulated"] = pd.Series(STAGES) * OUTPUT / (end_s - start_s)
        rows[f"{arm}_ttft_s"] = pd.Series(made.ttft_s).groupby(stage).mean()
        print(arm, "input from the cache", made.cached_tokens.sum() / made.input_tokens.sum())
    found = measured.join(pd.DataFrame(rows))
    found["gain"] = found["prefix_aware"] / found["round_robin"] - 1
    found["gain_simulated"] = found["prefix_aware_simulated"] / found["round_robin_simulated"] - 1
    print(found.round(2).to_string())
    same = np.sign(found["gain"]) == np.sign(found["gain_simulated"])
    print(f"sign of the gain: {same.mean():.0%} of {len(found)} rates")


if __name__ == "__main__":
    main()

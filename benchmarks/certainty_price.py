"""What certainty costs: the price at probability 0.9 over the price at 0.5.

    python benchmarks/certainty_price.py

Twenty questions from what ships: five LLMs, two request rates each, and two limits on TPOT, with
TTFT at p95 within 2 s. Prints each, and the median and the most.
"""

from itertools import product
from typing import Any

import pandas as pd

import sextant
from sextant.base.resources import resource

LOADS = {
    "meta-llama__Llama-3.1-8B-Instruct": (8, 40),
    "Qwen__Qwen3-32B": (4, 20),
    "meta-llama__Llama-3.3-70B-Instruct": (4, 12),
    "openai__gpt-oss-120b": (10, 60),
    "MiniMaxAI__MiniMax-M2.5": (2, 10),
}
"""Requests a second of each LLM."""
TPOT_MS = (25, 50)
LENGTHS = {"input_tokens": 1500, "output_tokens": 300}


def certainty_of(llm_id: str, request_rate: float, tpot_ms: float) -> dict[str, Any]:
    """Return what the JSON of an answer says of certainty: options of 0.5 and 0.9, their prices."""
    answer = sextant.recommend(
        hf_config=str(resource("llms") / f"{llm_id}.json"),
        request_rate=request_rate,
        ttft_ms="p95:2000",
        tpot_ms=tpot_ms,
        measured_only=True,
        **LENGTHS,
    )
    return answer.to_dict()["certainty"] or {}


def main() -> None:
    """Print the table."""
    factors = []
    for llm_id, rates in LOADS.items():
        for rate, tpot_ms in product(rates, TPOT_MS):
            certainty = certainty_of(llm_id, rate, tpot_ms)
            factors.append(certainty.get("factor"))
            print(f"{llm_id}, {rate}/s, TPOT {tpot_ms} ms: {factors[-1]}", flush=True)
    known = pd.Series(factors, dtype=float)
    print(f"price at 0.9 over price at 0.5: median {known.median():.2f}, most {known.max():.2f}")
    print(f"{known.isna().sum()} of {len(known)} questions have no option of 0.9")


if __name__ == "__main__":
    main()

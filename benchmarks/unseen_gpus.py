"""TPOT of servers on GPUs that no source measured: predicted over measured.

    SEXTANT_MIRROR=FOLDER python benchmarks/unseen_gpus.py

The mirror's `offline_servers` has a run each of vLLM 0.19 on an RTX 4090 and an RTX PRO 6000:
Llama-3.1-8B, 300 requests at ten a second, more than the server bears. The same requests are
simulated with the run's settings, from all that ships.
"""

import json
import os
from pathlib import Path

import pandas as pd

import sextant
from sextant.base.resources import resource

CONFIG = resource("llms") / "meta-llama__Llama-3.1-8B-Instruct.json"
RUNS = {
    "RTX4090_Llama-3.1-8B": "1xRTX-4090-24GB",
    "RTXPRO6000_Llama-3.1-8B": "1xRTX-PRO-6000-96GB",
}
DRAWS = 100


def main() -> None:
    """Print a row per run."""
    folder = Path(os.environ["SEXTANT_MIRROR"]) / "offline_servers"
    for name, gpu_profile in RUNS.items():
        settings = json.loads((folder / name / "meta.json").read_text())["engine_kwargs"]
        run = pd.read_json(folder / name / "requests.jsonl", lines=True).sort_values("queued_ts")
        measured_ms = (
            1e3 * (run["last_token_ts"] - run["first_token_ts"]) / (run["output_toks"] - 1)
        )
        trace = pd.DataFrame(
            {
                "arrival_s": run["queued_ts"] - run["queued_ts"].min(),
                "input_tokens": run["input_toks"],
                "output_tokens": run["output_toks"],
            }
        )
        answer = sextant.simulate(
            hf_config=CONFIG,
            gpu_profile=gpu_profile,
            trace=trace,
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            draws=DRAWS,
        ).to_dict()
        mean_ms = measured_ms.mean()
        low, high = (bound / mean_ms for bound in answer["intervals"]["tpot_ms"]["mean"])
        ratio = answer["tpot_ms"]["mean"] / mean_ms
        print(f"{gpu_profile}: TPOT {mean_ms:.1f} ms, predicted {ratio:.2f} ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()

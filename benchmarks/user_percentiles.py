"""Percentiles over means of a load test: simulated, by constant factors, and as measured.

gpt-oss-120b on one H200 under vLLM, 1 to 256 users who send ten requests each
(`speculation/gptoss_h200_eagle3.csv` of the mirror, without drafts; no row of it is a source). The
law that ships is simulated as that load test. Printed are the errors of TTFT's and TPOT's p50 to
p99 over their means, in the median of the loads.

    SEXTANT_MIRROR=… .venv/bin/python benchmarks/user_percentiles.py [--loads]
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))
from disaggregated import MIRROR, fitted, servers

from sextant.ask.scheduling import Settings
from sextant.facts.slo import factor
from sextant.law.user_percentiles import UserRequests, load_test_of
from sextant.points.frame import FactTables
from sextant.simulate.server import OK, Scheduler, StepLaw

PERCENTILES = (50, 90, 95, 99)
TARGETS = {"ttft": "nttft_ms", "tpot": "itl_ms"}
REQUESTS_A_USER = 10


def measured() -> pd.DataFrame:
    """Return the first run at each number of users, without drafts."""
    runs = pd.read_csv(MIRROR / "speculation" / "gptoss_h200_eagle3.csv")
    is_plain = (runs["n_draft"] == 0) & (runs["num_prompts"] == REQUESTS_A_USER * runs["users"])
    return runs[is_plain].drop_duplicates("users").sort_values("users")


def likeliest(row: pd.Series) -> tuple[StepLaw, Scheduler]:
    """Return the law and the scheduler of the measured server."""
    model, profiles, llms = fitted()
    keys = pd.DataFrame(
        {
            "llm_id": ["openai__gpt-oss-120b"],
            "gpu_profile_id": "1xH200-141GB",
            "input_tokens": row["mean_input_tokens"],
            "output_tokens": row["mean_output_tokens"],
            "engine": "vllm",
            "engine_version": "0.19.0",
            "precision": "mxfp4",
            "data_parallel": 1,
            "source": "archive:inferencex",
        }
    )
    (law,), (scheduler,) = servers(model, keys, FactTables(llms, profiles), [Settings()])
    return law, scheduler


def ratios(runs: pd.DataFrame) -> pd.DataFrame:
    """Return each percentile over its mean, measured, simulated and by constant factors."""
    law, scheduler = likeliest(runs.iloc[0])
    rows = []
    for _, run in runs.iterrows():
        lengths = run[["mean_input_tokens", "mean_output_tokens"]].to_numpy(float)[:, None]
        made = load_test_of(law, scheduler, int(run["users"]), UserRequests(*lengths), 42)
        is_ok = made.status == OK
        latencies_ms = {"ttft": 1e3 * made.ttft_s[is_ok], "tpot": 1e3 * made.tpot_s[is_ok]}
        for name, values in latencies_ms.items():
            for percentile in PERCENTILES:
                measured_ms, mean_ms = (
                    run[f"{name}_{statistic}_ms"] for statistic in (f"p{percentile}", "mean")
                )
                rows.append(
                    {
                        "users": run["users"],
                        "latency": name.upper(),
                        "percentile": percentile,
                        "measured": measured_ms / mean_ms,
                        "simulated": np.percentile(values, percentile) / values.mean(),
                        "constant": factor(TARGETS[name], 50, percentile),
                    }
                )
    return pd.DataFrame(rows)


def main() -> None:
    """Print the median errors, and each load if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", action="store_true", help="print each number of users, too")
    found = ratios(measured())
    if parser.parse_args().loads:
        print(found.round(2).to_string(index=False))
    errors = found[["simulated", "constant"]].div(found["measured"], axis=0).sub(1).abs()
    keys = [found["latency"], found["percentile"]]
    print("median error of a percentile over its mean, in %, of", found["users"].nunique(), "loads")
    print((100 * errors.groupby(keys).median()).round(1).to_string())


if __name__ == "__main__":
    main()

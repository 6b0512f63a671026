"""How close aiconfigurator's estimates come to measured points, beside our held-out predictions.

It needs aiconfigurator alone, in an environment of its own (it is not a dependency of Sextant):

    sextant evaluate --source archive:inferencex --predictor roofline --predictions held-out.csv
    python -m venv AIC && AIC/bin/pip install "aiconfigurator==0.12.*"
    AIC/bin/python benchmarks/beside_aiconfigurator.py --predictions held-out.csv --out beside.csv

Each point is asked as the tool's `cli estimate` would be: mode `agg`, backend `vllm`, nominal
lengths, all else as it is by default. Its estimates rest on kernels that were measured on these
GPUs for these LLMs; our predictions have not seen the LLM. Prints mean and median absolute error
of TTFT and TPOT in percent for both, over the rows that the tool answers, and what it does not.
Asking takes 1 to 2 s of CPU time a question: `--out` is read where it is there already.
"""

import argparse
import logging
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

SYSTEMS = {
    "B200-180GB": "b200_sxm",
    "B300-288GB": "b300_sxm",
    "H100-80GB": "h100_sxm",
    "H200-141GB": "h200_sxm",
}
# Other published weights of the same LLM, or none that the tool knows: a mode of its own.
CHECKPOINTS: dict[tuple[str, str], dict[str, str]] = {
    ("MiniMaxAI__MiniMax-M2.5", "nvfp4"): {"model_path": "nvidia/MiniMax-M2.5-NVFP4"},
    ("moonshotai__Kimi-K2.5", "nvfp4"): {"model_path": "nvidia/Kimi-K2.5-NVFP4"},
    ("Qwen__Qwen3-32B", "fp8"): {"model_path": "Qwen/Qwen3-32B-FP8"},
    ("meta-llama__Llama-3.1-70B", "fp8"): {"model_path": "nvidia/Llama-3.1-70B-Instruct-FP8"},
    ("meta-llama__Llama-3.1-70B", "nvfp4"): {
        "model_path": "nvidia/Llama-3.1-70B-Instruct-FP8",
        "gemm_quant_mode": "nvfp4",
    },
    ("nvidia__Llama-3.1-8B-Instruct-FP8", "fp8"): {
        "model_path": "meta-llama/Meta-Llama-3.1-8B",
        "gemm_quant_mode": "fp8",
        "kvcache_quant_mode": "fp8",
    },
}
ASKED = ["model_path", "gemm_quant_mode", "kvcache_quant_mode", "system_name", "isl", "osl"]
ASKED += ["batch_size", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
METRICS = ("ttft", "tpot")


def asked(row: Any) -> dict[str, Any]:
    """Return how the tool is asked for a held-out point."""
    n_gpus, gpu_id = row.gpu_profile_id.split("x", 1)
    devices, replicas, experts = int(n_gpus), int(row.data_parallel), int(row.expert_parallel)
    named = {"model_path": row.llm_id.replace("__", "/")}
    return CHECKPOINTS.get((row.llm_id, row.precision), named) | {
        "system_name": SYSTEMS[gpu_id],
        "isl": int(row.input_tokens),
        "osl": int(row.output_tokens),
        # It counts the requests of one copy of the attention layers.
        "batch_size": max(1, round(row.users / replicas)),
        "tp_size": devices // replicas,
        "attention_dp_size": replicas,
        "moe_tp_size": devices // experts,
        "moe_ep_size": experts,
    }


def estimate(question: dict[str, Any]) -> dict[str, Any]:
    """Return the tool's TTFT and TPOT in ms, or why it has none."""
    from aiconfigurator.cli.api import cli_estimate

    logging.disable(logging.ERROR)
    given = {name: value for name, value in question.items() if value is not None}
    try:
        found = cli_estimate(backend_name="vllm", **given)
    except Exception as error:  # it has many kinds, and each means that the row is not covered
        return {"reason": f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"}
    return {"ttft": float(found.ttft), "tpot": float(found.tpot), "reason": ""}


def beside(rows: pd.DataFrame, n_jobs: int) -> pd.DataFrame:
    """Return held-out points with `estimated_ttft, estimated_tpot, estimated_reason`."""
    questions = pd.DataFrame([asked(row) for row in rows.itertuples()]).reindex(columns=ASKED)
    questions = questions.astype(object).where(questions.notna(), None)
    each = [tuple(row) for row in questions.itertuples(index=False)]
    once = list(dict.fromkeys(each))
    with ProcessPoolExecutor(n_jobs) as pool:
        answers = pool.map(estimate, [dict(zip(ASKED, row, strict=True)) for row in once])
        found = dict(zip(once, answers, strict=True))
    return rows.join(pd.DataFrame([found[row] for row in each]).add_prefix("estimated_"))


def errors(rows: pd.DataFrame, column: str) -> list[float]:
    """Return MAPE and median of both metrics, in percent."""
    found = []
    for metric in METRICS:
        ratios = (rows[column.format(metric)] / rows[f"{metric}_ms"] - 1).abs()
        found += [100 * ratios.mean(), 100 * ratios.median()]
    return found


def main() -> None:
    """Ask the tool and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictions", required=True)
    parser.add_argument("--out", required=True, help="CSV: the predictions with the estimates")
    leave_out = "rows to leave out: `llm_id precision gpu_id`; may be given again"
    parser.add_argument("--without", action="append", default=[], help=leave_out)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if not Path(options.out).exists():
        beside(pd.read_csv(options.predictions), options.jobs).to_csv(options.out, index=False)
    rows = pd.read_csv(options.out)
    gpu_ids = rows["gpu_profile_id"].str.partition("x")[2]
    groups = rows["llm_id"] + " " + rows["precision"].fillna("as configured") + " " + gpu_ids
    rows, groups = rows[~groups.isin(options.without)], groups[~groups.isin(options.without)]
    covered = rows[rows["estimated_reason"].isna()]
    print(f"{len(covered)} of {len(rows)} points covered")
    sides = {"aiconfigurator": "estimated_{}", "held-out predictions": "{}_predicted_ms"}
    columns = [f"{metric} {name}" for metric in METRICS for name in ("MAPE", "median")]
    table = {side: errors(covered, column) for side, column in sides.items()}
    print(pd.DataFrame(table, index=columns).T.round(1).to_string())
    for side, column in sides.items():
        parts = {name: errors(part, column) for name, part in covered.groupby(groups)}
        print(f"\n{side}:\n{pd.DataFrame(parts, index=columns).T.round(1).to_string()}")
    print(rows["estimated_reason"].value_counts().to_string())


if __name__ == "__main__":
    main()

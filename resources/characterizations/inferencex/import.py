"""Import InferenceX's measurements, as aiconfigurator's table of them has them.

    python resources/characterizations/inferencex/import.py silicon_sample.csv [--out FOLDER]

Each row of that CSV is one measurement of a server: the LLM, the GPU, how the LLM was split over
devices, request lengths, concurrency, one TTFT and one TPOT. Sources: the continuous benchmark
InferenceX (github.com/SemiAnalysisAI/InferenceX), and measurements by aiconfigurator's authors
(github.com/ai-dynamo/aiconfigurator).
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
import pandas as pd

# For a checkout in which the library is not installed.
sys.path.append(str(Path(__file__).parents[3] / "scripts"))

from sextant.base.errors import InputError
from sextant.points.export import write_published
from sextant.points.folder_sheets import Description

ABOUT = Description(
    source="archive:inferencex",
    licence="Apache-2.0",
    attribution=(
        "Measured by InferenceX (SemiAnalysis, https://inferencex.semianalysis.com), and in part "
        "by the authors of aiconfigurator; published in github.com/ai-dynamo/aiconfigurator"
    ),
    statistic="mean",
    load="closed_loop",
    lengths="fixed",
    defaults={"engine": "vllm"},
    memory_utilization=0.9,
    workload_id="random-tokens",
    scenario_id="concurrency",
    note="Measured from October 2025 to April 2026 on vLLM 0.11 to 0.19, with random prompts.",
)
GPU_IDS = {
    "h100_sxm": "H100-80GB",
    "h200_sxm": "H200-141GB",
    "b200_sxm": "B200-180GB",
    "b300_sxm": "B300-288GB",
}
MXFP4 = ("openai/gpt-oss-120b",)
"""LLMs whose published 4-bit weights are MXFP4, although the table calls them NVFP4."""
_PRECISIONS = {"fp8": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4"}
_AUTHORS_RUNS = "aic-auto-gap-analysis"
"""Part of the source of rows that aiconfigurator's authors measured: their requests are alike."""
_MEAN_SHARE = 0.9
"""Mean length over the nominal one: InferenceX draws lengths from 80 to 100% of it, uniformly."""
_DENSE = ("meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "nvidia/Llama-3.1-8B-Instruct-FP8")
_NUMBERS = ["batch_size", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]
_SERVED = ["model_path", "system", "precision", "isl", "osl", "users"]
_MEASUREMENT = ["silicon_ttft_ms", "silicon_tpot_ms"]


def import_inferencex(published: Path, out: Path, configs: str = "../../llms") -> str:
    """Write the vLLM rows of the published table as a characterization; return the counts.

    Args:
        published: the CSV.
        out: the folder.
        configs: folder of the LLMs' `<llm_id>.json`, relative to `out`.

    Raises:
        InputError: the file is not such a table, or has an LLM or GPU that is not known.
    """
    rows = _read(published)
    distinct = rows.drop_duplicates([name for name in rows if name != "id"])
    once = distinct.drop_duplicates([*_MEASUREMENT, *_SERVED, *_NUMBERS])
    # Alike in all but their id, and listed in a second export with the same latencies.
    n_exact, n_again = len(rows) - len(distinct), len(distinct) - len(once)
    notes = [f"{n_exact} exact repeats"] * (n_exact > 0)
    notes += [f"{n_again} listed again"] * (n_again > 0)
    return write_published(out, ABOUT, _points(once), configs, len(rows), notes)


def _read(published: Path) -> pd.DataFrame:
    fix = "give silicon_sample.csv of github.com/ai-dynamo/aiconfigurator, or its vLLM rows"
    try:
        rows = pd.read_csv(published)
        rows = rows[(rows["backend"] == "vllm") & (rows["mode"] == "agg")].copy()
        rows[_NUMBERS] = rows[_NUMBERS].apply(pd.to_numeric)
        source = rows["silicon_data_source"]
        named = source.str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
        rows["users"] = named.fillna(rows["batch_size"]).astype(int)
        rows["measured_on"] = source.str.extract(r"measured=(\d{4}-\d{2}-\d{2})")[0]
        is_alike = source.str.contains(_AUTHORS_RUNS, na=False)
        lengths = rows[["isl", "osl"]].apply(pd.to_numeric)
        means = lengths.where(is_alike, (lengths * _MEAN_SHARE).round().astype(int), axis=0)
        rows[["input_tokens", "output_tokens"]] = means
        rows["moe_width"] = rows["moe_tp_size"] * rows["moe_ep_size"]
    except (OSError, ValueError, KeyError, csv.Error) as error:
        problem = f"not InferenceX's table ({error})"
        raise InputError(problem, file=published, fix=fix) from None
    unknown = ~rows["system"].isin(list(GPU_IDS))
    if unknown.any():
        at = unknown.idxmax()
        fix = "add it to GPU_IDS in this script, with its facts in resources/gpus"
        problem = f"unknown GPU {rows.loc[at, 'system']!r}"
        raise InputError(problem, file=published, row=int(at) + 2, field="system", fix=fix)
    return rows


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points. The table states in two ways how a server was split over devices.

    `attention_dp_size` 2 or 4: the server ran on `tp_size` devices, not on their product. Without
    it, a mixture of experts ran on as many devices as its experts were split over.
    """
    is_dense = rows["model_path"].isin(_DENSE)
    copies = rows["attention_dp_size"]
    n_gpus = rows["tp_size"].where(is_dense | copies.notna(), rows["moe_width"])
    copies = copies.fillna(n_gpus / rows["tp_size"])
    n_gpus, copies = n_gpus.astype(int), copies.astype(int)
    is_mxfp4 = rows["model_path"].isin(MXFP4)
    precision = rows["gemm_quant_mode"].map(_PRECISIONS).where(~is_mxfp4, "mxfp4")
    gpu_ids = rows["system"].map(GPU_IDS)
    return pd.DataFrame(
        {
            "model": rows["model_path"],
            "gpu_profile_id": n_gpus.astype(str) + "x" + gpu_ids,
            "engine_version": rows["backend_version"],
            "precision": precision,
            "kv_precision": _kv_precision(rows, precision),
            "tensor_parallel": n_gpus // copies,
            "data_parallel": copies,
            "expert_parallel": n_gpus.where(rows["moe_ep_size"] > 1, 1),
            "max_num_batched_tokens": _step_tokens(rows),
            "input_tokens": rows["input_tokens"],
            "output_tokens": rows["output_tokens"],
            "users": rows["users"],
            "mean_ttft_ms": rows["silicon_ttft_ms"],
            "mean_tpot_ms": rows["silicon_tpot_ms"],
            "measured_on": rows["measured_on"],
            "run_id": rows["id"],
        }
    )


def _kv_precision(rows: pd.DataFrame, precision: pd.Series) -> pd.Series:
    """Return the precision of each row's KV cache by InferenceX's recipes; NaN: not known.

    vLLM 0.14 and later keep the cache as a checkpoint says: those in NVFP4 say FP8. Llama-3.1-70B
    on H100 runs no more requests at once than a 16-bit cache holds, whatever its recipe says.
    """
    names = ("gpt-oss", "Kimi", "MiniMax", "Llama-3.1-70B")
    is_of = {name: rows["model_path"].str.contains(name) for name in names}
    on_blackwell = rows["system"].str.startswith("b")
    is_release = ~rows["backend_version"].str.contains("nightly", na=False)
    is_fp8 = (
        (is_of["Llama-3.1-70B"] & (rows["system"] != "h100_sxm"))
        | (is_of["gpt-oss"] & on_blackwell)
        | (precision == "nvfp4")
        | _has_late_recipe(rows)
    )
    is_known = is_of["gpt-oss"] | is_of["Kimi"] | is_of["Llama-3.1-70B"]
    is_known |= is_of["MiniMax"] & is_release
    # 16-bit weights keep a 16-bit cache.
    is_16_bit = ~is_fp8 & (is_known | precision.isna())
    return pd.Series(np.select([is_fp8, is_16_bit], ["fp8", "bf16"], None), rows.index)


def _step_tokens(rows: pd.DataFrame) -> pd.Series:
    """Return the most tokens of a step, where a recipe states others than vLLM's default."""
    return (2 * rows["isl"]).where(_has_late_recipe(rows)).astype("Int64")


def _has_late_recipe(rows: pd.DataFrame) -> pd.Series:
    """Return which rows are of MiniMax-M2.5's recipe for Blackwell since vLLM 0.19."""
    is_minimax = rows["model_path"].str.contains("MiniMax")
    on_blackwell = rows["system"].str.startswith("b")
    return is_minimax & on_blackwell & (rows["backend_version"] == "0.19.0")


if __name__ == "__main__":
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Write InferenceX's table as a characterization.")
    parser.add_argument("published", type=Path, help="silicon_sample.csv, or its vLLM rows")
    parser.add_argument("--out", type=Path, default=here, help="folder, made or updated")
    parser.add_argument("--configs", default="../../llms", help="LLMs' configs, relative to OUT")
    given = parser.parse_args()
    print(f"{given.out}: {import_inferencex(given.published, given.out, given.configs)}")

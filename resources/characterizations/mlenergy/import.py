"""Import the ML.ENERGY leaderboard's measurements of text generation.

    python resources/characterizations/mlenergy/import.py lm-arena-chat.json ... [--out FOLDER]

Each entry of its JSON files is a vLLM server with all of its `max_num_seqs` places taken:
percentiles of ITL, tokens and joules per second. Source: github.com/ml-energy/leaderboard,
`public/data`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

# For a checkout in which the library is not installed.
sys.path.append(str(Path(__file__).parents[3] / "scripts"))

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.points.export import write_published
from sextant.points.folder_sheets import Description

ABOUT = Description(
    source="archive:mlenergy",
    licence="Apache-2.0",
    attribution=(
        "Measured by the ML.ENERGY Initiative (https://ml.energy/leaderboard); published in "
        "github.com/ml-energy/leaderboard"
    ),
    statistic="median",
    load="closed_loop",
    lengths="varying",
    defaults={"engine": "vllm", "engine_version": "0.11.1"},
    memory_utilization=0.9,
    workload_id="lm-arena-chat-and-sourcegraph-fim",
    scenario_id="all-slots-busy",
    note=(
        "Measured on vLLM 0.11.1 with every slot of the batch taken; input lengths and TTFT are "
        "not published."
    ),
)
GPU_IDS = {"H100": "H100-80GB", "B200": "B200-180GB"}
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}
_KV_PRECISION = "bf16"
"""The configurations (github.com/ml-energy/benchmark, `configs/vllm`) leave the KV cache to vLLM
0.11, which keeps it as wide as the activations."""
_COLUMNS = {
    "avg_output_len": "output_tokens",
    "max_num_seqs": "users",
    "median_itl_ms": "median_itl_ms",
    "p90_itl_ms": "p90_itl_ms",
    "p95_itl_ms": "p95_itl_ms",
    "p99_itl_ms": "p99_itl_ms",
    "output_throughput_tokens_per_sec": "throughput_tok_s",
    "energy_per_token_joules": "energy_j_per_token",
}


def import_mlenergy(published: Sequence[Path], out: Path, configs: str = "../../llms") -> str:
    """Write the published measurements as a characterization; return the counts.

    Args:
        published: JSON files of tasks, e.g. `lm-arena-chat.json`.
        out: the folder.
        configs: folder of the LLMs' `<llm_id>.json`, relative to `out`.

    Raises:
        InputError: a file is not such a table, or has a GPU or a precision that is not known.
    """
    rows = pd.concat([_read(path) for path in published], ignore_index=True)
    return write_published(out, ABOUT, _points(rows), configs, len(rows))


def _read(path: Path) -> pd.DataFrame:
    fix = "give a task's file of public/data in github.com/ml-energy/leaderboard"
    found = read_json(path, fix=fix)
    needed = {"model_id", "gpu_model", "num_gpus", "data_parallel", "weight_precision", *_COLUMNS}
    try:
        rows = pd.DataFrame(found["configurations"]).assign(task=str(found["task"]))
    except (KeyError, TypeError, ValueError) as error:
        problem = f"not a task of the leaderboard ({error})"
        raise InputError(problem, file=path, fix=fix) from None
    if missing := needed - set(rows):
        raise InputError(
            "it is missing", file=path, field=f"configurations.{min(missing)}", fix=fix
        )
    for column, known in (("gpu_model", GPU_IDS), ("weight_precision", _PRECISIONS)):
        if unknown := set(rows[column]) - set(known):
            fix = "add it to this script"
            problem = f"unknown {min(unknown)!r}"
            raise InputError(problem, file=path, field=f"configurations.{column}", fix=fix)
    return rows


def _points(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points.

    The experts of a mixture are shared out over all devices; its `tensor_parallel` is given as 1,
    although its attention layers are split over them, unless there are copies of these.
    """
    is_split = (rows["architecture"] == "MoE") & (rows["num_gpus"] > 1)
    return rows.rename(columns=_COLUMNS)[list(_COLUMNS.values())].assign(
        model=rows["model_id"],
        gpu_profile_id=rows["num_gpus"].astype(str) + "x" + rows["gpu_model"].map(GPU_IDS),
        precision=rows["weight_precision"].map(_PRECISIONS),
        kv_precision=_KV_PRECISION,
        tensor_parallel=rows["num_gpus"] // rows["data_parallel"],
        data_parallel=rows["data_parallel"],
        expert_parallel=rows["num_gpus"].where(is_split, 1),
        run_id=rows["task"] + "/" + rows["model_id"],
    )


if __name__ == "__main__":
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description="Write the leaderboard as a characterization.")
    parser.add_argument("published", type=Path, nargs="+", help="a JSON file per task")
    parser.add_argument("--out", type=Path, default=here, help="folder, made or updated")
    parser.add_argument("--configs", default="../../llms", help="LLMs' configs, relative to OUT")
    given = parser.parse_args()
    print(f"{given.out}: {import_mlenergy(given.published, given.out, given.configs)}")

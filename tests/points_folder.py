"""Writes a folder of points, as `--source` reads it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from support import ROOT

ABOUT = {
    "source": "archive:made-up",
    "licence": "CC0-1.0",
    "attribution": "nobody",
    "statistic": "mean",
    "load": "closed_loop",
    "lengths": "fixed",
    "defaults": {"engine": "vllm", "engine_version": "0.19.0"},
}


def write_points_folder(
    folder: Path,
    llms: Iterable[str] | Mapping[str, Path],
    usd_per_hour: Mapping[str, float],
    points: pd.DataFrame,
    **about: Any,
) -> Path:
    """Write points of LLMs on GPU profiles, and return the folder.

    Args:
        folder: where.
        llms: names of configurations that ship, or configurations by name.
        usd_per_hour: prices of GPU profiles, `<n>x<gpu_id>`.
        points: rows of points.csv.
        about: fields of characterization.yaml that are not as in `ABOUT`.
    """
    (folder / "characterization.yaml").write_text(json.dumps(ABOUT | about))
    if not isinstance(llms, Mapping):
        llms = {name: ROOT / "resources" / "llms" / f"{name}.json" for name in llms}
    configs = pd.DataFrame({"llm_id": [*llms], "config": [str(path) for path in llms.values()]})
    configs.to_csv(folder / "llms.tsv", sep="\t", index=False)
    profiles = [
        {"gpu_profile_id": name, "gpu_id": gpu_id, "n_gpus": n_gpus, "usd_per_hour": price}
        for name, price in usd_per_hour.items()
        for n_gpus, _, gpu_id in [name.partition("x")]
    ]
    pd.DataFrame(profiles).to_csv(folder / "gpu_profiles.tsv", sep="\t", index=False)
    points.to_csv(folder / "points.csv", index=False)
    return folder

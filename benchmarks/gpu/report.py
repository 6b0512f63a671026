"""What `benchmarks/gpu/run` makes of its cells: store, characterization, the law's predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.points.cell_files import read_run
from sextant.points.characterization import (
    Characterization,
    Description,
    combined,
    load_folder,
    shipped_sources,
)
from sextant.points.export import export_folder, write_description, write_points
from sextant.points.frame import TARGETS, Facts, at_percentile
from sextant.points.measured import load_all
from sextant.predict.accuracy import accuracy, predict_rows, prediction_table
from sextant.predict.folds import Task

_NOT_SHOWN = ["engine", "engine_version", "precision", "gpu_profile_id", "request_rate_rps", "fold"]


def report(out: Path, config: Mapping[str, Any]) -> None:
    """Write store, characterization and predictions below `out`, which has the cells; print each
    point and the errors. The law is fitted on the sources `fit_on` alone.
    """
    folder, known = out / "characterization", _measured(out / "cells")
    write_description(
        folder,
        Description(
            source=known.source,
            memory_utilization=known.memory_utilization,
            longest_request_tokens=known.longest_request_tokens,
            **config["description"],
        ),
    )
    (folder / "llms.tsv").unlink(missing_ok=True)  # a later run has measured more of them
    export_folder(known, folder, llms=Path(config["llms"]))
    write_points(folder / "points.csv", known.points)
    table = _predicted(load_folder(folder), config["fit_on"], config["seed"])
    table.to_csv(out / "predictions.csv", index=False, lineterminator="\n")
    shown = table.drop(columns=_NOT_SHOWN).dropna(axis="columns", how="all")
    shown = shown.sort_values(["llm_id", "input_tokens", "users"])
    print(shown.to_string(index=False, float_format="{:.4g}".format))
    errors = accuracy(table)
    for metric in ("ttft", "tpot"):
        print(
            f"{metric.upper()} of {errors[f'n_{metric}']} points, law fitted on "
            f"{' + '.join(config['fit_on'])}: MAPE {errors[f'mape_{metric}']:.1%}, "
            f"median {errors[f'mdape_{metric}']:.1%}, "
            f"{errors[f'coverage_{metric}']:.0%} inside the 90% intervals"
        )


def _measured(cells: Path) -> Characterization:
    """Return the points of all workloads, with the TPOT of requests in place of ITL.

    A prompt of others lengthens one gap of many, so that the median of pooled gaps hides it; the
    sources that the law is fitted on have TPOT.
    """
    parts = load_all(cells)
    points = pd.concat([part.points for part in parts], ignore_index=True)
    gaps = [name for name in points if name.endswith(("_itl_ms", "_tpot_ms"))]
    tpot = pd.concat([_tpot(path.parent) for path in sorted(cells.rglob("run.json"))])
    feasibility = pd.concat([part.feasibility for part in parts], ignore_index=True)
    return replace(
        parts[0],
        points=points.drop(columns=gaps).merge(tpot, on=["llm_id", "workload_id", "users"]),
        feasibility=feasibility.drop_duplicates(["llm_id", "gpu_profile_id"]),
        longest_request_tokens=max(part.longest_request_tokens or 0 for part in parts),
    )


def _tpot(cell: Path) -> pd.DataFrame:
    """Return mean and median TPOT of a cell's requests by users."""
    run, requests = read_run(cell), pd.read_parquet(cell / "requests.parquet")
    ok = requests[requests["status"] == "ok"]
    tpot_ms = (ok["last_token_s"] - ok["first_token_s"]) * 1000 / (ok["output_tokens"] - 1)
    found = tpot_ms.groupby(ok["level"]).agg(mean_tpot_ms="mean", median_tpot_ms="median")
    found = found.assign(llm_id=run.llm_id, workload_id=run.workload_id)
    return found.rename_axis("users").reset_index().astype({"users": "Int64"})


def _predicted(known: Characterization, fit_on: Sequence[str], seed: int) -> pd.DataFrame:
    """Return the measured points beside the medians and intervals of a law that never saw them."""
    shipped = [load_folder(shipped_sources()[name]) for name in fit_on]
    both = combined([*shipped, known])
    points = at_percentile(both.points, (50, 50))
    points = points[(points[TARGETS] > 0).any(axis=1)].reset_index(drop=True)
    facts = Facts(both.llms, both.profiles, None)
    task = Task(both.source, points, facts, feasible=(), has_fixed_lengths=True)
    rows = (points["source"] == known.source).to_numpy()
    held = predict_rows(task, points, known.source, rows, "roofline", seed, (50, 50))
    served = held.points[["throughput_tok_s", "energy_j_per_token"]]
    return prediction_table([held]).join(served)

"""What `benchmarks/gpu/run` makes of its cells: a characterization, and predictions beside it.

    .venv/bin/python benchmarks/gpu/report.py benchmarks/gpu/h200

compares the points of a characterization that was measured before; no GPU is needed.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet, read_yaml
from sextant.capacity.simulation import Deployment, Sent, simulate_llm
from sextant.experiment.sheets import LlmRow
from sextant.facts.slo import SLO
from sextant.judge.accuracy import predict_rows
from sextant.judge.figures import accuracy, prediction_table
from sextant.judge.known import KNOWN
from sextant.judge.task import Task
from sextant.points.cell_files import read_run
from sextant.points.characterization import Characterization, combined
from sextant.points.export import export_folder, write_description, write_points
from sextant.points.folder import load_folder, shipped_sources
from sextant.points.folder_sheets import Description
from sextant.points.frame import FactTables, at_percentile, is_usable
from sextant.points.measured import load_all
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import RequestStream

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "benchmark.yaml"  # in the folder of the points: the configuration that they were made with
_DRAWS = 20
_NOT_SHOWN = [
    *("engine", "engine_version", "precision", "gpu_profile_id", "request_rate_rps", "fold"),
    *(*KNOWN, "ttft_crps", "tpot_crps"),
]


def report(out: Path, config: Mapping[str, Any]) -> None:
    """Write the characterization of the cells below `out`, and compare it with predictions."""
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
    (folder / CONFIG).write_text(yaml.safe_dump(dict(config)))
    compare(folder, config).to_csv(out / "predictions.csv", index=False, lineterminator="\n")


def compare(folder: Path, config: Mapping[str, Any]) -> pd.DataFrame:
    """Print and return each point of a characterization beside predictions; print the errors.

    The law is fitted on each of the lists `fit_on`, none of which has the points; the table is of
    the first. Columns `sent` are the simulation of the load as it was sent.
    """
    known, tables = load_folder(folder), {}
    for sources in config["fit_on"]:
        means = _predicted(known, sources, config["seed"])
        name = " + ".join(sources)
        tables |= {name: means, f"{name}, simulated as sent": _simulated(means, sources, config)}
    table, sent = [*tables.values()][:2]
    simulated = sent.filter(regex="^(ttft|tpot)_(predicted|lo|hi)_ms$").add_prefix("sent_")
    both = table.join(simulated).sort_values(["llm_id", "input_tokens", "users"])
    shown = both.drop(columns=_NOT_SHOWN).dropna(axis="columns", how="all")
    print(shown.to_string(index=False, float_format="{:.4g}".format))
    for name, each in tables.items():
        errors = accuracy(each)
        for metric in ("ttft", "tpot", "energy"):
            if not errors.get(f"n_{metric}"):
                continue
            print(
                f"{metric.upper()} of {errors[f'n_{metric}']} points, law fitted on "
                f"{name}: MAPE {errors[f'mape_{metric}']:.1%}, "
                f"median {errors[f'mdape_{metric}']:.1%}, "
                f"{errors[f'coverage_{metric}']:.0%} inside the 90% intervals"
            )
    return both


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
    found = found.assign(llm_id=run.key.llm_id, workload_id=run.key.workload_id)
    return found.rename_axis("users").reset_index().astype({"users": "Int64"})


def _predicted(known: Characterization, fit_on: Sequence[str], seed: int) -> pd.DataFrame:
    """Return the measured points beside predictions of a law that never saw them, for medians (for
    which a source without them has means)."""
    shipped = [load_folder(shipped_sources()[name]) for name in fit_on]
    both = combined([*shipped, known])
    points = at_percentile(both.points, (50, 50))
    points = points[is_usable(points)].reset_index(drop=True)
    facts = FactTables(both.llms, both.profiles, None)
    task = Task(both.source, points, facts, feasible=(), has_fixed_lengths=True)
    rows = (points["source"] == known.source).to_numpy()
    held = predict_rows(task, points, known.source, rows, "roofline", seed, (50, 50))
    table = prediction_table([held])
    served = held.points[["throughput_tok_s", "energy_j_per_token"]]
    return table.join(served.drop(columns=table.columns, errors="ignore"))


def _simulated(
    table: pd.DataFrame, sources: Sequence[str], config: Mapping[str, Any]
) -> pd.DataFrame:
    """Return a prediction table with the simulated medians of the load as it was sent.

    Requests of equal lengths whose users begin at once stay in step: all prompts of a round wait
    for each other. The law's own means are of loads whose requests differ.
    """
    llms = {row["llm_id"]: row["config"] for row in load_sheet(config["llms"], LlmRow, "llm_id")}
    duration_s = {
        (each["input_tokens"], each["output_tokens"]): each["duration_s"]
        for each in config["lengths"]
    }
    engine = config["engine"]
    settings = Settings(engine["max_num_seqs"], has_prefix_caching=False)
    table = table.drop(columns=table.filter(regex="energy|_crps$").columns)
    for row in table.itertuples():
        lengths = round(row.input_tokens), round(row.output_tokens)
        question = Question(
            SLO("sent", users=row.users, percentile=50, ttft_ms=1),  # a limit is needed, not used
            hf_config=Path(llms[row.llm_id]),
            sources=tuple(sources),
            dtype=engine["dtype"],
            engine="vllm",
            gpu_profile_ids=(row.gpu_profile_id,),
            requests=RequestLengths(*(Length(n, n) for n in lengths)),
            seed=config["seed"],
        )

        def equal(n: int, lengths: tuple[int, int] = lengths) -> RequestStream:
            return RequestStream.of(np.zeros(n), *(np.full(n, tokens) for tokens in lengths))

        sent = Sent("equal requests", equal, duration_s[lengths], row.users)
        found = simulate_llm(question, sent, settings, Deployment(n_draws=_DRAWS)).to_dict()
        for metric in ("ttft", "tpot"):
            ends = found["intervals"][f"{metric}_ms"]["p50"]
            table.loc[row.Index, f"{metric}_predicted_ms"] = found[f"{metric}_ms"]["p50"]
            table.loc[row.Index, [f"{metric}_lo_ms", f"{metric}_hi_ms"]] = ends
    return table


def main() -> None:
    """Compare a characterization that was measured before."""
    parser = argparse.ArgumentParser(description="Compare measured points with predictions.")
    parser.add_argument("folder", type=Path, help="characterization that the benchmark wrote")
    folder = parser.parse_args().folder.absolute()
    os.chdir(ROOT)  # from which the configuration's paths count
    try:
        compare(folder, read_yaml(folder / CONFIG))
    except InputError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

"""The pipeline's evaluation: read a task from tables, write the result as tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sextant.base.files import provenance, read_parquet, write_parquet
from sextant.experiment.experiment import Experiment
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.facts.slo import SLO
from sextant.judge.evaluate import evaluate_predictor, fit_of
from sextant.judge.kept_fits import keeping
from sextant.judge.task import Task, task_of
from sextant.points import frame

_TABLES = ("prediction", "candidate", "recommendation", "score")


def read_task(
    inputs: Mapping[str, str | Path],
    experiment: Experiment,
    decision: Mapping[str, str],
    source: str,
    memory_utilization: float,
) -> Task:
    """Read the points that recommendations rest on.

    Args:
        inputs: paths of the tables `point` and `feasibility` of one source.
        experiment: the sheets.
        decision: `workload_id` and `scenario_id` of the points.
        source: name of the characterization.
        memory_utilization: share of the memory that servers may use.
    """
    chosen = pd.Series({**decision, "variant_id": DEFAULT_VARIANT})

    def read(name: str) -> pd.DataFrame:
        rows = read_parquet(inputs[name]).to_pandas()
        return rows[(rows[[*chosen.index]] == chosen).all(axis=1)].reset_index(drop=True)

    points = read("point")
    tried = read("feasibility")
    features = frame.published_features(experiment)
    facts = frame.FactTables(experiment.llm_facts, experiment.profiles, features)
    workload = experiment.workloads.get(decision["workload_id"])
    longest = workload["max_input_tokens"] + workload["max_output_tokens"] if workload else None
    # Levels of other scenarios are not users; with their nulls the column held floats.
    points = frame.points_of_store(points.astype({"users": "int32"}))
    return task_of(source, points, tried, facts, longest, memory_utilization)


def evaluate_files(
    inputs: Mapping[str, Any],
    task: Task,
    slos: Sequence[SLO],
    predictor: str,
    seed: int,
    n_jobs: int,
    outputs: Mapping[str, str | Path],
) -> None:
    """Evaluate a predictor on a task that was read from files, and write its tables.

    Arguments are those of `evaluate_predictor`. `inputs` are paths of the tables `point` and
    `feasibility`, and of the `library` that the fits follow from; `outputs` are paths of the tables
    by their names, beside which the fits are kept.
    """
    tables = {name: Path(str(inputs[name])) for name in ("point", "feasibility")}
    code = [Path(path) for path in inputs["library"]]
    folder = Path(outputs["score"]).parent / "fits"
    fit = fit_of(task, predictor, seed, n_jobs=n_jobs)
    kept = keeping(fit, folder, task, predictor, seed, code)
    result = evaluate_predictor(task, slos, predictor, seed, fit=kept)
    origin = provenance(tables, seed=seed)
    for name, rows in zip(_TABLES, result, strict=True):
        table = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
        write_parquet(outputs[name], table, origin)

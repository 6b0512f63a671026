"""From the files of the benchmark stage to the tables that a predictor fills."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa

from sextant.base.files import provenance, read_parquet, write_parquet
from sextant.decide.evaluate import Evaluation, evaluate
from sextant.decide.pairs import task_of
from sextant.experiment.experiment import Experiment
from sextant.experiment.servers import DEFAULT_VARIANT
from sextant.points.characterizations.characterization import points_of_store
from sextant.points.characterizations.features import Facts, published_features
from sextant.predict.folds import Task


def read_task(
    inputs: Mapping[str, str | Path],
    experiment: Experiment,
    decision: Mapping[str, str],
    source: str,
    memory_utilization: float,
) -> Task:
    """Read the points that recommendations rest on.

    Args:
        inputs: paths of tables `point` and `feasibility` of one source.
        experiment: facts of LLMs and GPU profiles.
        decision: `workload_id` and `scenario_id` of the points.
        source: name of the characterization.
        memory_utilization: fraction of the memory that servers may use.
    """
    points, tried = (
        _of_decision(read_parquet(inputs[name]).to_pandas(), decision)
        for name in ("point", "feasibility")
    )
    facts = Facts(experiment.llm_facts, experiment.profiles, published_features(experiment))
    workload = experiment.workloads.get(decision["workload_id"])
    longest = workload["max_input_tokens"] + workload["max_output_tokens"] if workload else None
    # Levels of other scenarios are not users; with their nulls the column held floats.
    points = points_of_store(points.astype({"users": "int32"}))
    return task_of(source, points, tried, facts, longest, memory_utilization)


def evaluate_files(
    inputs: Mapping[str, str | Path],
    task: Task,
    experiment: Experiment,
    predictor: str,
    seed: int,
    n_jobs: int,
    outputs: Mapping[str, str | Path],
) -> Evaluation:
    """Evaluate a predictor on stored points and write its tables.

    Args:
        inputs: the files that `task` was read from.
        task: what `read_task` returned.
        experiment: the SLOs.
        predictor: its name, or `measured`.
        seed: seed of the predictor's training.
        n_jobs: processes to use.
        outputs: paths of `prediction`, `candidate`, `recommendation` and `score`.
    """
    slos = list(experiment.slos.values())
    result = evaluate(task, slos, predictor, seed, n_jobs=n_jobs)
    origin = provenance(dict(inputs), seed=seed)
    frames = dict(zip(("prediction", "candidate", "recommendation", "score"), result, strict=True))
    for name, frame in frames.items():
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        write_parquet(outputs[name], table, origin)
    return result


def _of_decision(frame: pd.DataFrame, decision: Mapping[str, str]) -> pd.DataFrame:
    is_chosen = frame["variant_id"] == DEFAULT_VARIANT
    for name, value in decision.items():
        is_chosen &= frame[name] == value
    return frame[is_chosen].reset_index(drop=True)

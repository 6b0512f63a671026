"""From the files of the benchmark stage to the tables that a predictor fills."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa

from sextant.base.files import provenance, read_parquet, write_parquet
from sextant.characterizations.features import Features
from sextant.characterizations.points import IDENTIFIERS, Pair
from sextant.decide.evaluate import MEASURED, Evaluation, evaluate
from sextant.experiment.experiment import Experiment
from sextant.experiment.memory import assess
from sextant.experiment.variants import DEFAULT_VARIANT
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM


def feasible_pairs(
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    longest_request_tokens: int,
    memory_utilization: float,
) -> set[Pair]:
    """Return the (LLM, GPU profile) pairs that facts allow to serve a workload.

    Facts only: what a probe has shown of an LLM is not known of one that is held out.

    Args:
        llms: facts of the LLMs.
        profiles: the GPU profiles.
        longest_request_tokens: input and output of the workload's longest request.
        memory_utilization: fraction of the memory that servers may use.
    """
    return {
        (llm_id, profile_id)
        for llm_id, llm in llms.items()
        if llm.context_tokens >= longest_request_tokens
        for profile_id, profile in profiles.items()
        if assess(llm, profile.devices, memory_utilization, longest_request_tokens).is_feasible
    }


def allowed_pairs(
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    longest_request_tokens: int | None,
    memory_utilization: float | None,
    tried: pd.DataFrame,
) -> set[Pair]:
    """Return the pairs that a predictor may recommend.

    Those that facts allow (`feasible_pairs`); for an archive, whose longest request is not
    known, those that it found feasible, of held-out LLMs too: so did LLM-Pilot.
    """
    if longest_request_tokens is None:
        pairs = tried.loc[tried["is_feasible"].astype(bool), IDENTIFIERS]
        return set(pairs.itertuples(index=False, name=None))
    return feasible_pairs(llms, profiles, longest_request_tokens, memory_utilization)


def failed_pairs(tried: pd.DataFrame) -> set[Pair]:
    """Return the pairs of table `feasibility` that were tried and do not fit."""
    failed = tried[~tried["is_feasible"].astype(bool)]
    return set(failed[IDENTIFIERS].itertuples(index=False, name=None))


def evaluate_files(
    point: str | Path,
    feasibility: str | Path,
    experiment: Experiment,
    decision: Mapping[str, str],
    predictor: str,
    source: str,
    seed: int,
    memory_utilization: float,
    n_jobs: int,
    outputs: Mapping[str, str | Path],
) -> Evaluation:
    """Evaluate a predictor on stored points and write its tables.

    Args:
        point: table `point` of one source.
        feasibility: table `feasibility` of the same source.
        experiment: facts and SLOs.
        decision: `workload_id` and `scenario_id` whose points recommendations rest on.
        predictor: its name, or `measured`.
        source: name of the characterization.
        seed: seed of the predictor's training.
        memory_utilization: fraction of the memory that servers may use.
        n_jobs: processes to use.
        outputs: paths of `prediction`, `candidate`, `recommendation` and `score`.
    """
    workload = experiment.workloads.get(decision["workload_id"])
    points, tried = (
        _of_decision(read_parquet(path).to_pandas(), decision) for path in (point, feasibility)
    )
    # Levels of other scenarios are no users; with their nulls the column was not whole.
    points = points.astype({"users": "int32"})
    feasible = allowed_pairs(
        experiment.llm_facts,
        experiment.profiles,
        workload and workload["max_input_tokens"] + workload["max_output_tokens"],
        memory_utilization,
        tried,
    )
    if predictor == MEASURED:
        feasible -= failed_pairs(tried)
    result = evaluate(
        points,
        experiment.llm_facts,
        experiment.profiles,
        list(experiment.slos.values()),
        predictor,
        source,
        seed,
        features=published_features(experiment),
        feasible=feasible,
        n_jobs=n_jobs,
    )
    origin = provenance({"point": point, "feasibility": feasibility}, seed=seed)
    frames = dict(zip(("prediction", "candidate", "recommendation", "score"), result, strict=True))
    for name, frame in frames.items():
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
        write_parquet(outputs[name], table, origin)
    return result


def published_features(experiment: Experiment) -> Features | None:
    """Return the features that came with an experiment's characterization, if any did."""
    if not experiment.features:
        return None
    rows = experiment.features
    return Features.published(rows["llms"], rows["gpus"], experiment.profiles)


def feature_rows(source: str, features: Features | None) -> list[dict[str, str]]:
    """Return the rows of table `feature`; `characterization` reads them back."""
    return [
        {"source": source, "kind": kind, "id": name, "facts": facts.to_json(double_precision=15)}
        for kind, table in zip(("llm", "gpu_profile"), features or (), strict=bool(features))
        for name, facts in table.astype(object).iterrows()
    ]


def _of_decision(frame: pd.DataFrame, decision: Mapping[str, str]) -> pd.DataFrame:
    is_chosen = frame["variant_id"] == DEFAULT_VARIANT
    for name, value in decision.items():
        is_chosen &= frame[name] == value
    return frame[is_chosen].reset_index(drop=True)

"""Scores of predictors on a sheet of SLOs, from a characterization."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import cpu_count

from sextant.advice.question import PREDICTOR
from sextant.base.rows import frame_rows
from sextant.characterizations.characterization import Characterization
from sextant.characterizations.features import Facts
from sextant.decide.evaluate import evaluate
from sextant.decide.names import configurable
from sextant.decide.pairs import task_of
from sextant.experiment.slo import load_slos
from sextant.predict.registry import check_installed


def evaluate_predictors(
    known: Characterization,
    slos: Path,
    predictors: Sequence[str] | None,
    seed: int,
    *,
    progress: Callable[[str], None] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Judge predictors on every SLO of a sheet by leave-one-LLM-out.

    Returns:
        `predictors`: means over the SLOs, one row a predictor; `scenarios`: one row a
        predictor and SLO. A mean leaves out SLOs that have no value, e.g. no success.
    """
    targets = list(load_slos(slos).values())
    # Not all that there are: some take many minutes.
    names = list(dict.fromkeys(predictors or ())) or [
        name for name in configurable() if name in (known.predictors or [PREDICTOR])
    ]
    check_installed(names, "--predictor")
    task = task_of(
        known.source,
        known.points,
        known.feasibility,
        Facts(known.llms, known.profiles, known.features),
        known.longest_request_tokens,
        known.memory_utilization,
    )
    scores = pd.concat(
        evaluate(task, targets, name, seed, n_jobs=cpu_count(), progress=progress).scores
        for name in names
    )
    means = scores.groupby("predictor", sort=False).agg(
        so_score=("so_score", "mean"),
        success_rate=("success_rate", "mean"),
        overspend=("overspend", "mean"),
        mape_nttft=("mape_nttft", "mean"),
        mape_itl=("mape_itl", "mean"),
        n_scenarios=("slo_id", "size"),
        # SLOs that share a fit state the same number: it was spent once.
        fit_seconds=("fit_seconds", lambda seconds: seconds.drop_duplicates().sum()),
    )
    return {"predictors": frame_rows(means.reset_index()), "scenarios": frame_rows(scores)}

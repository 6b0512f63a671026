"""Nested tuning of LLM-Pilot's predictor against scikit-learn's GridSearchCV, in one run.

    .venv/bin/python benchmarks/nested_tuning.py

Needs the store of `make reproduce-llm-pilot`. Both sides get the same rows, features, weights,
grid of 120 settings and processes; for each of the 10 LLMs held out the chosen settings and
the predictions have to be the same. Prints both times and their ratio.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import cpu_count
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut
from sklearn.pipeline import Pipeline
from xgboost import XGBRegressor

from sextant.facts.slo import SLO
from sextant.judge.folds import design_rows
from sextant.judge.task import task_of_characterization
from sextant.points.frame import FLOOR_MS, TARGETS, at_percentile
from sextant.points.measured import load_characterization
from sextant.predict.features import FeatureEncoder, sample_weights
from sextant.predict.llm_pilot import LLMPilot
from sextant.predict.predictor import Settings, TrainingRows
from sextant.predict.tuning import choose_nested

PAPER = SLO("paper", nttft_ms=100.0, itl_ms=50.0, percentile=50, users=200)
SEED = 42


class Encode(TransformerMixin, BaseEstimator):
    """The predictor's own encoding as a step of a pipeline."""

    def fit_transform(self, X, y):
        self.encoder_ = FeatureEncoder()
        return self.encoder_.fit_transform(X, y)

    def fit(self, X, y):
        self.fit_transform(X, y)
        return self

    def transform(self, X):
        return self.encoder_.transform(X)


class OneIntercept(XGBRegressor):
    """XGBoost with one intercept for both targets, which depends on the training rows."""

    def fit(self, X, y, sample_weight=None):
        self.set_params(base_score=float(np.average(y.mean(axis=1), weights=sample_weight)))
        return super().fit(X, y, sample_weight=sample_weight)


def characterization(database: Path) -> TrainingRows:
    task = task_of_characterization(load_characterization(database, "archive:llm-pilot"))
    points = at_percentile(task.points, PAPER.percentiles)
    return design_rows(LLMPilot(PAPER, {}, SEED), points, task.facts)


def ours(rows: TrainingRows, n_jobs: int) -> dict[str, tuple[Settings, np.ndarray]]:
    settings = choose_nested(LLMPilot(PAPER, {}, SEED), rows, n_jobs, lambda text: None)
    found = {}
    for llm_id, chosen in settings.items():
        model = LLMPilot(PAPER, {}, SEED, chosen).fit(rows.without([llm_id]))
        found[llm_id] = chosen, model.predict(rows.of([llm_id]).X).to_numpy()
    return found


def theirs(rows: TrainingRows, n_jobs: int) -> dict[str, tuple[Settings, np.ndarray]]:
    weights = pd.Series(sample_weights(*rows, PAPER.target_limits_ms), rows.X.index)
    encoder = FeatureEncoder()
    encoder.fit_transform(*rows)
    trees = OneIntercept(
        tree_method="hist",
        max_bin=256,
        random_state=SEED,
        n_jobs=1,
        monotone_constraints=encoder.monotone_in_users(),
    )
    # In the order of LLMPilot.GRID, so that ties are broken alike.
    grid = [{f"trees__{k}": [v] for k, v in settings.items()} for settings in LLMPilot.GRID]
    found = {}
    for llm_id in sorted(rows.X["llm_id"].unique()):
        training, unseen = rows.without([llm_id]), rows.of([llm_id])
        search = GridSearchCV(
            Pipeline([("encode", Encode()), ("trees", trees)]),
            grid,
            scoring="neg_mean_absolute_percentage_error",
            cv=LeaveOneGroupOut(),
            n_jobs=n_jobs,
        ).fit(
            training.X,
            training.y[TARGETS],
            groups=training.X["llm_id"],
            trees__sample_weight=weights[training.X.index],
        )
        chosen = {name.removeprefix("trees__"): v for name, v in search.best_params_.items()}
        # Trees may predict less than 0 ms; the predictor says the least that is a latency.
        found[llm_id] = chosen, np.maximum(search.predict(unseen.X).astype(float), FLOOR_MS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--database", type=Path, default=Path("results/llm-pilot/sextant.duckdb"), help="store"
    )
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="processes of both sides")
    options = parser.parse_args()
    rows = characterization(options.database)
    seconds, results = {}, {}
    for name, tune in (("sextant", ours), ("GridSearchCV", theirs)):
        start = time.monotonic()
        results[name] = tune(rows, options.jobs)
        seconds[name] = time.monotonic() - start
        print(f"{name}: {seconds[name]:.1f} s with {options.jobs} processes", flush=True)
    pairs = [
        (results["sextant"][name], results["GridSearchCV"][name]) for name in results["sextant"]
    ]
    same_settings = sum(mine[0] == other[0] for mine, other in pairs)
    difference = max(np.abs(mine[1] - other[1]).max() for mine, other in pairs)
    print(f"same settings for {same_settings} of {len(pairs)} LLMs held out")
    print(f"largest difference of a prediction: {difference:g} ms")
    print(f"GridSearchCV / sextant: {seconds['GridSearchCV'] / seconds['sextant']:.1f}")


if __name__ == "__main__":
    main()

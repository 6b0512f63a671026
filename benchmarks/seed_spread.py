"""How far a predictor's score at the paper's requirements moves with the seed alone.

    .venv/bin/python benchmarks/seed_spread.py llm_pilot selecta --seeds 10
    .venv/bin/python benchmarks/seed_spread.py rf paris --seeds 10 --tune-once

Needs the store of `make reproduce-llm-pilot`. Prints S, O and S/O a seed, then mean and
standard deviation. With `--tune-once` hyperparameters are those chosen with the first seed
and only the final trainings differ: for predictors whose tuning takes many minutes.
"""

import argparse
from pathlib import Path

import pandas as pd
from joblib import cpu_count

from sextant.decide.sizing import candidates, recommend_cheapest
from sextant.facts.slo import SLO
from sextant.judge.folds import design_rows
from sextant.judge.score import score_recommendation, summarize
from sextant.judge.task import Task, task_of_characterization
from sextant.points.frame import IDENTIFIERS, TARGETS, at_percentile
from sextant.points.measured import load_characterization
from sextant.predict.predictor import PREDICTORS, TrainingRows, predictor_class, reference_profiles
from sextant.predict.tuning import Tunable, choose_nested

PAPER = SLO("paper", nttft_ms=100.0, itl_ms=50.0, percentile=50, users=200)
FIRST_SEED = 42
KEYS = [*IDENTIFIERS, "users"]


def score(task: Task, predicted: pd.DataFrame) -> dict[str, float]:
    llm_ids = sorted(predicted["llm_id"].unique())
    truth, guessed = (
        candidates(latencies, llm_ids, task.facts.profiles, PAPER, task.feasible)
        for latencies in (at_percentile(task.points, PAPER.percentiles), predicted)
    )
    judged = score_recommendation(
        recommend_cheapest(guessed), truth, recommend_cheapest(truth), PAPER.load
    )
    return summarize(judged)._asdict()


def predict(make: type, rows: TrainingRows, profiles, seed: int, settings: dict) -> pd.DataFrame:
    parts = []
    for llm_id in sorted(rows.X["llm_id"].unique()):
        chosen = settings.get(llm_id)
        model = make(PAPER, profiles, seed, *([chosen] if chosen else []))
        own = rows.of([llm_id])
        told = own.on(reference_profiles(profiles) if make.uses_references else ())
        latencies = model.fit(rows.without([llm_id]), told).predict(own.X)
        latencies.loc[told.X.index] = told.y[TARGETS]
        parts.append(own.X[KEYS].join(latencies))
    return pd.concat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predictors", nargs="+", choices=sorted(PREDICTORS))
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 42 on")
    parser.add_argument("--tune-once", action="store_true", help="with the first seed only")
    parser.add_argument(
        "--database", type=Path, default=Path("results/llm-pilot/sextant.duckdb"), help="store"
    )
    options = parser.parse_args()
    task = task_of_characterization(load_characterization(options.database, "archive:llm-pilot"))
    profiles = task.facts.profiles
    for name in options.predictors:
        make, settings, found = predictor_class(name), {}, []
        points = at_percentile(task.points, PAPER.percentiles)
        model = make(PAPER, profiles, FIRST_SEED)
        rows = design_rows(model, points, task.facts)
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            if isinstance(model, Tunable) and not (settings and options.tune_once):
                model = make(PAPER, profiles, seed)
                settings = choose_nested(model, rows, cpu_count(), lambda text: None)
            result = score(task, predict(make, rows, profiles, seed, settings))
            found.append({k: result[k] for k in ("success_rate", "overspend", "so_score")})
            print(name, seed, found[-1], flush=True)
        frame = pd.DataFrame(found).astype(float)
        print(
            f"{name}: mean {frame.mean().round(3).to_dict()}, std {frame.std().round(3).to_dict()}"
        )


if __name__ == "__main__":
    main()

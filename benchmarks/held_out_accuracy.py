"""How close predictions of an unmeasured LLM come, beside simpler predictors and the noise.

    python benchmarks/held_out_accuracy.py [--source archive:inferencex]

Prints a row a predictor: mean and median absolute error of TTFT and TPOT in percent over all
points, each predicted without its LLM, and the share inside the 90% intervals. `one law` is the
law with its parameters alone, one value each for all LLMs, devices, precisions and versions.
`repeats` is what a measurement differs from the median of its repeats: nobody can predict better.
"""

import argparse
from unittest import mock

import pandas as pd
from joblib import cpu_count

from sextant.ask.source import load_sources
from sextant.judge.accuracy import predict_held_out
from sextant.judge.figures import METRICS, accuracy, prediction_table
from sextant.judge.task import Task, task_of_characterization
from sextant.law import roofline
from sextant.law.terms import LAW
from sextant.points.frame import IDENTIFIERS, LENGTHS, SERVING, TARGETS, at_percentile

SEED = 42
PREDICTORS = ("roofline", "llm_pilot")


def general_effects(X: pd.DataFrame):
    """Return one effect a parameter, for all rows."""
    return [effect for effect in LAW.effects(X) if effect.name == "all"]


def figures(task: Task, name: str, n_jobs: int) -> dict[str, float | int | None]:
    """Return the accuracy of a predictor."""
    return accuracy(prediction_table(predict_held_out(task, name, SEED, n_jobs=n_jobs)))


def one_law(task: Task) -> dict[str, float | int | None]:
    """Return the accuracy of the law without effects, in this process."""
    plain = LAW._replace(effects=general_effects)
    with mock.patch.object(roofline, "LAW", plain):
        return figures(task, "roofline", n_jobs=1)


def repeats(task: Task) -> dict[str, float]:
    """Return how far measurements that were repeated are from the median of their repeats."""
    points = at_percentile(task.points, (50, 50))
    groups = points.groupby([*IDENTIFIERS, *SERVING, *LENGTHS, "users"], dropna=False)[TARGETS]
    again = groups.transform("size") > 1
    errors = (points[TARGETS] / groups.transform("median") - 1).abs()[again]
    result: dict[str, float] = {}
    for metric, target in METRICS.items():
        result |= {f"mape_{metric}": errors[target].mean(), f"n_{metric}": int(again.sum())}
        result[f"mdape_{metric}"] = errors[target].median()
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="archive:inferencex")
    known, _ = load_sources([parser.parse_args().source])
    task = task_of_characterization(known)
    rows = {name: figures(task, name, cpu_count()) for name in PREDICTORS}
    rows |= {"one law": one_law(task), "repeats": repeats(task)}
    table = pd.DataFrame(rows).T.astype(float)
    shares = [name for name in table if not name.startswith("n_")]
    table[shares] *= 100
    print(table.round(1).to_string())


if __name__ == "__main__":
    main()

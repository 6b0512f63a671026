"""The registry tells where each predictor is, what it needs, and imports none by itself."""

import subprocess
import sys

import numpy as np
import pytest

from roofline import LIMITS, PROFILES
from sextant.base.errors import InputError
from sextant.base.files import library_files
from sextant.predict.predictor import (
    PREDICTORS,
    JointPredictor,
    Place,
    PointPredictor,
    check_installed,
    predictor_class,
)
from sextant.predict.tuning import Tunable
from support import ROOT, needs_baselines

MARKS = {name: [needs_baselines] * bool(place.libraries) for name, place in PREDICTORS.items()}
EVERY = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]
EVALUATE = ROOT / "scripts" / "evaluate_predictor.py"


@pytest.mark.parametrize("name", EVERY)
def test_every_predictor_implements_one_protocol(name: str) -> None:
    place, found = PREDICTORS[name], predictor_class(name)
    assert found.__name__ == place.class_name
    assert found.__module__.startswith(place.module)
    model = found(LIMITS, PROFILES, 0)
    assert isinstance(model, PointPredictor) != isinstance(model, JointPredictor)
    assert isinstance(model, JointPredictor) == (name == "roofline")
    assert isinstance(model, Tunable) == (name not in ("roofline", "perfnet", "perfnetv2"))


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("experiment.loading, sextant.predict", {"scipy", "joblib", "matplotlib"}),
        *((name, set()) for name in ("bench.cell", "workload.fit", "decide.evaluate")),
        ("report.trace_file", set()),
    ],
)
def test_a_job_starts_without_what_takes_a_second_to_import(module: str, heavy: set[str]) -> None:
    heavy = heavy | {"scipy.special", "scipy.stats", "scipy.optimize", "sklearn", "xgboost"}
    code = f"import sys, sextant.{module}; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_answer_does_not_wait_for_libraries_that_it_does_not_use() -> None:
    code = """
import sys, numpy as np, sextant.recommend.recommend, sextant.answer.answer
print(sorted({"sklearn", "xgboost", "scipy", "duckdb", "jinja2"} & sys.modules.keys()))
import sklearn
from sextant.law.roofline import load_xgboost
xgboost = load_xgboost()
matrix = xgboost.DMatrix(np.eye(2), np.ones(2))
print(xgboost.train({"base_score": 0.5}, matrix, 1).num_boosted_rounds())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "1"]


def test_a_missing_library_is_named_with_its_fix(monkeypatch) -> None:
    monkeypatch.setitem(PREDICTORS, "net", Place("Net", "nowhere", ("no_such_library",)))
    check_installed(["roofline", "static_policy", "measured"])
    said = r"'predictors'.*net needs no_such_library.*make baselines"
    with pytest.raises(InputError, match=said):
        check_installed(["roofline", "net"], "predictors")
    with pytest.raises(InputError, match="net needs no_such_library"):
        predictor_class("net")


def test_an_edit_of_a_predictor_leaves_the_results_of_the_others() -> None:
    """The files that make results stale: a predictor's own are in no other's list."""
    files = {
        name: {str(path) for path in library_files(EVALUATE.parent, EVALUATE, place.module)}
        for name, place in PREDICTORS.items()
    }
    shared = {str(path) for path in library_files(EVALUATE.parent, EVALUATE)}
    roofline = {path for path in files["roofline"] if "/predict/roofline/" in path}
    package = ROOT / "scripts" / "sextant" / "predict" / "roofline"
    assert roofline == {str(path) for path in package.glob("*.py")}
    for name, others in files.items():
        assert bool(others & roofline) == (name == "roofline"), name
        assert shared <= others
    for own in ("llm_pilot", "rf", "selecta", "perfnet", "morphling"):
        users = {name for name in files if any(f"/predict/{own}.py" in f for f in files[name])}
        assert users <= {own, *(["perfnetv2"] if own == "perfnet" else [])}
    assert not any("/studies/importance.py" in path for path in shared)
    assert np.all([any("/predict/folds.py" in path for path in each) for each in files.values()])

"""The registry tells where each predictor is, what it needs, and imports none by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from roofline import LIMITS, PROFILES
from sextant.base.errors import InputError
from sextant.base.files import library_files
from sextant.predict.predictor import (
    PREDICTORS,
    JointPredictor,
    PointPredictor,
    Registration,
    check_installed,
    predictor_class,
)
from sextant.predict.tuning import Tunable
from support import ROOT, needs_baselines

MARKS = {
    name: [needs_baselines] * bool(registered.libraries) for name, registered in PREDICTORS.items()
}
EVERY = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]
SCRIPTS = ROOT / "scripts"
EVALUATE = SCRIPTS / "evaluate_predictor.py"
LIBRARY = SCRIPTS / "sextant"


@pytest.mark.parametrize("name", EVERY)
def test_every_predictor_implements_one_protocol(name: str) -> None:
    registered = PREDICTORS[name]
    kind = predictor_class(name)
    assert kind.__name__ == registered.class_name
    assert kind.__module__ == registered.module
    model = kind(LIMITS, PROFILES, 0)
    assert isinstance(model, PointPredictor) != isinstance(model, JointPredictor)
    assert isinstance(model, JointPredictor) == (name == "roofline")
    assert isinstance(model, Tunable) == (name not in ("roofline", "perfnet", "perfnetv2"))


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("experiment.loading, sextant.predict.predictor", {"scipy", "joblib", "matplotlib"}),
        *((name, set()) for name in ("bench.cell", "workload.fit", "judge.evaluate")),
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
import sys, sextant.recommend.recommend, sextant.answer.answer
print(sorted({"sklearn", "xgboost", "scipy", "duckdb", "jinja2"} & sys.modules.keys()))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_library_is_named_with_its_fix(monkeypatch) -> None:
    monkeypatch.setitem(PREDICTORS, "net", Registration("Net", "nowhere", ("no_such_library",)))
    check_installed(["roofline", "static_policy", "measured"])
    said = r"'predictors'.*net needs no_such_library.*make baselines"
    with pytest.raises(InputError, match=said):
        check_installed(["roofline", "net"], "predictors")
    with pytest.raises(InputError, match="net needs no_such_library"):
        predictor_class("net")


def test_an_edit_of_a_predictor_leaves_the_results_of_the_others() -> None:
    """The files that make results stale: a predictor's own are in no other's list."""
    files = {
        name: {
            str(Path(path).relative_to(LIBRARY))
            for path in library_files(SCRIPTS, EVALUATE, registered.module)
        }
        for name, registered in PREDICTORS.items()
    }
    shared = {str(Path(path).relative_to(LIBRARY)) for path in library_files(SCRIPTS, EVALUATE)}
    law = {path for path in files["roofline"] if path.startswith("law/")}
    assert law == {
        f"law/{name}.py"
        for name in (
            *("effects", "energy", "fact_rows", "fit", "fit_arrays", "means", "own", "plausible"),
            *("posterior", "roofline", "scaled_steps", "terms", "unseen"),
        )
    }
    for name, others in files.items():
        assert bool(others & law) == (name == "roofline"), name
        assert shared <= others
        assert "judge/folds.py" in others
    for name in ("llm_pilot", "rf", "selecta", "perfnet", "morphling"):
        users = {user for user in files if f"predict/{name}.py" in files[user]}
        assert users <= {name, *(["perfnetv2"] if name == "perfnet" else [])}
    assert "studies/importance.py" not in shared

"""The registry of predictors tells where each is without importing it."""

import subprocess
import sys

import pytest

from sextant.predict.registry import PREDICTORS, predictor_class
from support import ROOT


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_predictor_is_where_the_registry_says(name: str) -> None:
    place, found = PREDICTORS[name], predictor_class(name)
    assert found.__name__ == place.class_name
    assert found.__module__.startswith(f"sextant.predict.{place.modules[0]}")
    for module in place.modules:
        file = ROOT / "scripts" / "sextant" / "predict" / module
        assert file.is_dir() or file.with_suffix(".py").is_file()


@pytest.mark.parametrize("name", PREDICTORS)
def test_who_draws_from_a_posterior_depends_on_the_decision(name: str) -> None:
    draws = getattr(predictor_class(name), "learns_from_facts", False)
    assert draws == ("decision" in PREDICTORS[name].modules)


def test_the_experiment_is_read_without_what_fits_and_learns() -> None:
    code = """
import sys, sextant.experiment, sextant.predict.registry
print(sorted({"scipy", "sklearn", "xgboost", "joblib", "matplotlib"} & sys.modules.keys()))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

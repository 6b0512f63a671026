"""The registry of predictors tells where each is without importing it."""

import subprocess
import sys

import pytest

from sextant.predict.registry import PREDICTORS, predictor_class


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_predictor_is_where_the_registry_says(name: str) -> None:
    place, found = PREDICTORS[name], predictor_class(name)
    assert found.__name__ == place.class_name
    assert found.__module__.startswith(place.module)


def test_the_experiment_is_read_without_what_fits_and_learns() -> None:
    code = """
import sys, sextant.experiment.loading, sextant.predict.registry
print(sorted({"scipy", "sklearn", "xgboost", "joblib", "matplotlib"} & sys.modules.keys()))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

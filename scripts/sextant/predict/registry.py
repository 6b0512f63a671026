"""The predictors that a configuration may name, and where their classes are.

A class is imported when it is first used: some need optional libraries.
"""

from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from sextant.base.errors import InputError
from sextant.predict.predictor import JointPredictor, PointPredictor


class Registration(NamedTuple):
    """Where a class is, and which optional libraries it needs."""

    class_name: str
    module: str
    libraries: tuple[str, ...] = ()  #: Modules of the extra `baselines` of pyproject.toml.


_KERAS = ("keras", "jax")

PREDICTORS = {
    "roofline": Registration("Roofline", "sextant.law.roofline"),
    "llm_pilot": Registration("LLMPilot", "sextant.predict.llm_pilot"),
    "rf": Registration("RandomForest", "sextant.predict.rf"),
    "paris": Registration("PARIS", "sextant.predict.paris"),
    "selecta": Registration("Selecta", "sextant.predict.selecta", ("surprise",)),
    "perfnet": Registration("PerfNet", "sextant.predict.perfnet", _KERAS),
    "perfnetv2": Registration("PerfNetV2", "sextant.predict.perfnetv2", _KERAS),
    "morphling": Registration("Morphling", "sextant.predict.morphling", _KERAS),
}
"""Predictors that a configuration may name, beside `static_policy`."""
PREDICTOR = "roofline"
"""The default: it draws, so it states how certain it is."""
MEASURED = "measured"
"""Recommendations straight from the points: the optimum."""
STATIC_POLICY = "static_policy"
"""One answer for all LLMs, chosen in hindsight (`sextant.judge.score.best_policy`)."""


def configurable() -> tuple[str, ...]:
    """Return the names that a configuration may list under `predictors`."""
    return (*PREDICTORS, STATIC_POLICY)


def predictor_class(name: str) -> type[PointPredictor] | type[JointPredictor]:
    """Return the class of a predictor; InputError where a library that it needs is missing."""
    check_installed([name])
    registered = PREDICTORS[name]
    return getattr(import_module(registered.module), registered.class_name)


def check_installed(names: Collection[str], field: str = "predictor") -> None:
    """Raise InputError where a predictor that `field` names needs a library that is not installed.

    Names that are not in `PREDICTORS` need none.
    """
    for name in names:
        libraries = PREDICTORS[name].libraries if name in PREDICTORS else ()
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            problem = f"{name} needs {' and '.join(missing)}, not installed here"
            fix = "run `make baselines`, or `pip install -r requirements-baselines.lock`"
            raise InputError(problem, field=field, fix=fix)


def draws_samples(name: str) -> bool:
    """Return whether a predictor draws joint samples."""
    return name in PREDICTORS and issubclass(predictor_class(name), JointPredictor)

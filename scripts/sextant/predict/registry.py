"""The predictors that a configuration may name, and the names that recommendations have."""

from collections.abc import Collection
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from sextant.base.errors import InputError

if TYPE_CHECKING:
    from sextant.predict.protocols import JointPredictor, PointPredictor


class Place(NamedTuple):
    """Where a class is, and which optional libraries it needs."""

    class_name: str
    module: str
    libraries: tuple[str, ...] = ()
    """Modules of the extra `baselines` of pyproject.toml."""

    def load(self) -> Any:
        """Import the class."""
        return getattr(import_module(self.module), self.class_name)


_KERAS = ("keras", "jax")

PREDICTORS = {
    "roofline": Place("Roofline", "sextant.predict.roofline"),
    "llm_pilot": Place("LLMPilot", "sextant.predict.llm_pilot"),
    "rf": Place("RandomForest", "sextant.predict.rf"),
    "paris": Place("PARIS", "sextant.predict.paris"),
    "selecta": Place("Selecta", "sextant.predict.selecta", ("surprise",)),
    "perfnet": Place("PerfNet", "sextant.predict.perfnet", _KERAS),
    "perfnetv2": Place("PerfNetV2", "sextant.predict.perfnetv2", _KERAS),
    "morphling": Place("Morphling", "sextant.predict.morphling", _KERAS),
}


def predictor_class(name: str) -> "type[PointPredictor] | type[JointPredictor]":
    """Return the class of a predictor, a key of `PREDICTORS`.

    Raises:
        InputError: a library that it needs is not installed.
    """
    check_installed([name])
    return PREDICTORS[name].load()


def check_installed(names: Collection[str], field: str = "predictor") -> None:
    """Raise InputError where a predictor needs a library that is not installed.

    Args:
        names: names of predictors; those that are not in `PREDICTORS` need none.
        field: the option or key that named them.
    """
    for name in names:
        libraries = PREDICTORS[name].libraries if name in PREDICTORS else ()
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            problem = f"{name} needs {' and '.join(missing)}, not installed here"
            fix = "run `make baselines`, or `pip install -r requirements-baselines.lock`"
            raise InputError(problem, field=field, fix=fix)


def draws_samples(name: str) -> bool:
    """Return whether a predictor draws joint samples: it implements `JointPredictor`."""
    return name in PREDICTORS and hasattr(predictor_class(name), "sample")


PREDICTOR = "roofline"
"""The default: it draws, so it states how certain it is."""
MEASURED = "measured"
"""Recommendations straight from the points: the optimum."""
STATIC_POLICY = "static_policy"
"""One answer for all LLMs, chosen in hindsight (`sextant.decide.score.best_policy`)."""


def configurable() -> tuple[str, ...]:
    """Return the names that a configuration may list under `predictors`."""
    return (*PREDICTORS, STATIC_POLICY)

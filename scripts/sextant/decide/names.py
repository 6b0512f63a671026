"""The names that recommendations have: those of predictors, and two that predict nothing.

Cheap to import: every job of a workflow reads them.
"""

from sextant.predict.registry import PREDICTORS

PREDICTOR = "roofline"
"""The default: it draws, so it states how certain it is."""
MEASURED = "measured"
"""Recommendations straight from the points: the optimum."""
STATIC_POLICY = "static_policy"
"""One answer for all LLMs, chosen in hindsight (`sextant.decide.score.best_policy`)."""


def configurable() -> tuple[str, ...]:
    """Return the names that a configuration may list under `predictors`."""
    return (*PREDICTORS, STATIC_POLICY)

"""The names that recommendations have: those of predictors, and two that predict nothing.

Cheap to import: every job of a workflow reads them.
"""

from typing import Literal

from sextant.predict.registry import PREDICTORS

MEASURED = "measured"
"""Recommendations straight from the points: the optimum."""
STATIC_POLICY = "static_policy"
"""One answer for all LLMs, chosen in hindsight (`sextant.decide.static_policy`)."""
HoldOut = Literal["llm", "gpu", "engine_version"]
"""What a fold has not seen: an LLM, a type of GPU, a version of an engine."""


def configurable() -> tuple[str, ...]:
    """Return the names that a configuration may list under `predictors`."""
    return (*PREDICTORS, STATIC_POLICY)

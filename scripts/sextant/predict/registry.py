"""The predictors that a configuration may name.

A predictor is made with `(slo, profiles, seed)` and fitted on `Rows`. Then it either
predicts latencies, `predict(X)`, from which eq. 1-3 recommend, or decides at once:
`decide(llm_ids)` returns a profile, replicas and their price for each LLM. Attributes of
its class tell how to use it:

- `depends_on`: fields of the SLO that a fit depends on; SLOs alike in them share one fit;
- `min_training_llms`: with fewer it cannot be fitted;
- `uses_references`: a new LLM is first measured on the two reference profiles, and
  `fit(training, references)` gets these points (predictors of latencies only);
- `learns_from_facts`: it takes rows of `roofline.facts.fact_rows` in place of features, and
  `sample(X)` returns joint draws, from which `decision` chooses;
- `GRID`, `validation_errors`: see `sextant.predict.tuning`; only where there is something to
  tune. A fourth argument, `settings`, then takes what was chosen before.

A new predictor is one file and one line here. What a predictor learns with is imported when it is
asked for: every job of a workflow reads the names.
"""

from importlib import import_module
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a predictor is."""

    class_name: str
    module: str


PREDICTORS = {
    "roofline": Place("Roofline", "sextant.predict.roofline"),
    "llm_pilot": Place("LLMPilot", "sextant.predict.llm_pilot"),
    "static_policy": Place("StaticPolicy", "sextant.predict.static_policy"),
    "rf": Place("RandomForest", "sextant.predict.rf"),
    "paris": Place("PARIS", "sextant.predict.paris"),
    "selecta": Place("Selecta", "sextant.predict.selecta"),
    "perfnet": Place("PerfNet", "sextant.predict.perfnet"),
    "perfnetv2": Place("PerfNetV2", "sextant.predict.perfnetv2"),
    "morphling": Place("Morphling", "sextant.predict.morphling"),
}


def predictor_class(name: str) -> Any:
    """Return the class of a predictor, a key of `PREDICTORS`."""
    place = PREDICTORS[name]
    return getattr(import_module(place.module), place.class_name)

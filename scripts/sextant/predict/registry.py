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

A new predictor is one file and one line here.
"""

from sextant.predict.llm_pilot import LLMPilot
from sextant.predict.morphling import Morphling
from sextant.predict.paris import PARIS
from sextant.predict.perfnet import PerfNet
from sextant.predict.perfnetv2 import PerfNetV2
from sextant.predict.rf import RandomForest
from sextant.predict.roofline import Roofline
from sextant.predict.selecta import Selecta
from sextant.predict.static_policy import StaticPolicy

PREDICTORS = {
    "roofline": Roofline,
    "llm_pilot": LLMPilot,
    "static_policy": StaticPolicy,
    "rf": RandomForest,
    "paris": PARIS,
    "selecta": Selecta,
    "perfnet": PerfNet,
    "perfnetv2": PerfNetV2,
    "morphling": Morphling,
}

"""The predictors that a configuration may name.

A predictor is made with `(slo, profiles, seed)` and follows scikit-learn: `fit(X, y)` takes
a design matrix and the latencies `nttft_ms, itl_ms`, missing where nothing succeeded. Then
it either predicts latencies, `predict(X)`, from which eq. 1-3 recommend, or decides at once:
`decide(llm_ids)` returns a profile, replicas and their price for each LLM. Two attributes
tell how to use it: `depends_on`, the fields of the SLO that a fit depends on (SLOs alike in
them share one fit), and `min_training_llms`. A new predictor is one file and one line here.
"""

from sextant.predict.llm_pilot import LLMPilot
from sextant.predict.static_policy import StaticPolicy

PREDICTORS = {
    "llm_pilot": LLMPilot,
    "static_policy": StaticPolicy,
}

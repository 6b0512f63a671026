"""The largest request rate that a budget serves within the limits."""

from functools import partial

import numpy as np

from sextant.answer.budget import Budget, BudgetAnswer, VariableLoad, spend_budget
from sextant.answer.rate_sizer import RateSizer
from sextant.ask.case import read_case
from sextant.ask.caveats import outside_warning
from sextant.ask.forecast import fit_medians
from sextant.ask.question import Question
from sextant.decide.decision import SAFE
from sextant.deploy.settings import settings_of


def recommend_for_budget(question: Question, usd_per_month: float) -> BudgetAnswer:
    """Return the largest request rate that a budget serves, on each GPU profile.

    Args:
        question: its load is a rate of 1/s; without a risk, the probability is `SAFE`.
        usd_per_month: the budget.

    Raises:
        InputError: the budget buys no replica, or the measurements have no law of a step.
    """
    risk = 1 - SAFE if question.risk is None else question.risk
    budget = Budget(usd_per_month, 1 - risk)
    case = read_case(question)
    excluded = case.excluded
    outside = case.outside_clauses()
    sizer = RateSizer.of(case, fit_medians(case), risk)
    slo = question.slo

    def load_of(profile_id: str) -> VariableLoad:
        def loads_at(factor: float) -> np.ndarray:
            return sizer.loads(slo.scaled(load=factor), [profile_id])[profile_id].to_numpy()

        return VariableLoad(loads_at, guess=1.0)

    loads = {name: load_of(name) for name in sizer.servers}
    outcomes = spend_budget(budget, case, slo.load, loads, {**excluded, **sizer.unknown})
    return BudgetAnswer(
        llm_id=case.llm_id,
        basis=question.predictor,
        chosen=outcomes[0].option,
        alternatives=outcomes,
        slo=slo,
        budget=budget,
        traffic=sizer.traffic.name,
        has_traffic=False,
        risk=question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        settings_on=partial(settings_of, case),
        warnings=[
            *case.failure_notes,
            *outside_warning(outside, case.source),
            *case.lengths_notes,
            *case.notes,
            *case.assumed_notes(),
            *case.probe_notes(has_steps=True),
            *sizer.notes(),
        ],
        serving=case.serving,
    )

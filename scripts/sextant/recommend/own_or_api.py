"""The recommended option beside an API that sells tokens of the same LLM."""

import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.ask.api_prices import ApiComparison, Billed, OwnDeployment, compare_with_api
from sextant.ask.case import Case
from sextant.ask.question import Question
from sextant.decide.headroom import Headroom
from sextant.facts.slo import SLO

_STEADY = (
    "The rate is taken as a steady load, {how}. Requests that arrive at random may need more "
    "replicas; `sextant capacity` simulates them where steps are known."
)


def api_comparison(
    case: Case,
    chosen: Option,
    options: pd.DataFrame | None,
    headroom: Headroom,
    lengths: np.ndarray,
) -> ApiComparison | None:
    """Compare the chosen option with an API, if that is asked for and requests are known.

    Args:
        case: the LLM, and how it is served.
        chosen: the recommended option.
        options: all options, weighed; None: nothing is known of probabilities.
        headroom: rate and price of the chosen option.
        lengths: mean input and output tokens of a request.
    """
    question = case.question
    if question.api_prices is None or headroom.usd_per_million_tokens is None:
        return None

    def probability(replicas: int) -> float | None:
        if options is None:
            return None
        is_paid = (options["gpu_profile_id"] == chosen.gpu_profile_id) & (
            options["replicas"] <= replicas
        )
        return float(options["probability_met"].where(is_paid, 0.0).max())

    rate_rps = headroom.requests_per_s or 0.0
    billed = Billed(rate_rps, float(lengths[0]), float(lengths[1]), question.prefix_hit_rate)
    deployment = OwnDeployment(
        case.gpu_profiles[str(chosen.gpu_profile_id)],
        chosen.replicas or 0,
        headroom.most_requests_per_s,
        probability,
    )
    return compare_with_api(question.api_prices, case.llm_id, billed, deployment)


def no_api_note(question: Question, chosen: Option, api: ApiComparison | None) -> list[str]:
    """Return that an API could not be compared with, where it was asked for."""
    if question.api_prices and chosen.gpu_profile_id is not None and api is None:
        return ["No comparison with an API: the requests' rate or lengths are not known."]
    return []


def steady_note(slo: SLO, how: str) -> list[str]:
    """Return how a rate was taken that is not simulated; nothing where users are asked for."""
    return [] if slo.request_rate_rps is None else [_STEADY.format(how=how)]

"""What would be recommended for other loads, limits, lengths and prices (`--vary`)."""

from collections.abc import Sequence
from dataclasses import replace

from sextant.answer.option import Option
from sextant.answer.variations import Variation
from sextant.ask.case import Case, read_case
from sextant.ask.variation import Variant
from sextant.base.errors import InputError
from sextant.recommend.decision import Decision, decide_case
from sextant.recommend.measured import recommend_measured
from sextant.recommend.options import option_for
from sextant.recommend.weighing import Weighing


def vary_measured(case: Case, chosen: Option, variants: Sequence[Variant]) -> list[Variation]:
    """Return what the LLM's own points recommend for each variant.

    Args:
        case: one that points answer.
        chosen: the answer to it.
        variants: what is varied.

    Raises:
        InputError: a variant varies what the question does not have.
    """
    variations = []
    for variant in variants:
        variant.requests(case.question.requests)  # such points have no other lengths
        question = replace(case.question, slo=variant.slo(case.question.slo))
        varied = replace(case, question=question, gpu_profiles=variant.priced(case.gpu_profiles))
        variations.append(Variation(variant.values, recommend_measured(varied).chosen, chosen))
    return variations


def vary_predicted(decision: Decision, variants: Sequence[Variant]) -> list[Variation]:
    """Return what is recommended for each variant: requests of other lengths are weighed again.

    Raises:
        InputError: a variant varies what the question does not have, or cannot be answered.
    """
    asked = decision.case.stated
    weighings = {asked.requests: decision.weighing}
    variations = []
    for variant in variants:
        requests = variant.requests(asked.requests)
        if requests not in weighings:
            try:
                case = read_case(replace(asked, requests=requests))
                weighings[requests] = decide_case(case).decision.weighing
            except InputError as error:
                raise error.at(field="--vary") from None
        weighing = _at_prices(weighings[requests], variant)
        option = option_for(weighing, variant.slo(weighing.slo))
        variations.append(Variation(variant.values, option, decision.chosen))
    return variations


def _at_prices(weighing: Weighing, variant: Variant) -> Weighing:
    case = weighing.case
    priced = replace(case, gpu_profiles=variant.priced(case.gpu_profiles))
    return replace(weighing, forecast=weighing.forecast.of_case(priced))

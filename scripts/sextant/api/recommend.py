"""Which GPU profile, and how many replicas, serve an LLM at the lowest cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sextant.api.groups import refuse
from sextant.api.keywords import with_keywords
from sextant.api.question_options import (
    CandidateOptions,
    LimitOptions,
    LoadOptions,
    ProbedCaseOptions,
    VaryOption,
    refuse_varied_budget,
    slo_of_options,
)
from sextant.api.shown import ShownAnswer, shown_budget, shown_options
from sextant.api.trace_choice import TraceChoiceOptions
from sextant.base.errors import InputError

_SIMULATED = (
    "With --trace the answer is that of `sextant capacity`: replicas for this traffic, simulated."
)


@dataclass(frozen=True, kw_only=True)
class RecommendOptions(TraceChoiceOptions):
    """How a recommendation is made."""

    max_failed: Annotated[float | None, typer.Option(min=0, max=1)] = None
    """Largest share of failed requests; 0.01 by default."""
    predictor: str = "roofline"  #: Predictor for an unmeasured LLM.
    trace: Path | None = None
    """In place of a load, the traffic of this normalised trace: the answer is that of `sextant
    capacity`."""
    decision: Literal["utility", "paper"] = "utility"
    """utility: price against probability; paper: LLM-Pilot's eq. 1-3."""
    disaggregated: Annotated[bool, typer.Option("--disaggregated")] = False
    """Compare with prefill and decode on replicas of their own, at a request rate."""
    risk: float | None = None
    """Take the cheapest option that breaks a limit at most this likely; predicted ones need a
    predictor that draws samples: roofline."""
    usd_per_month: float | None = None
    """In place of a load, a budget for a month of 730 hours: the answer is the largest request rate
    that it serves."""
    vary: VaryOption = None


@with_keywords
def recommend(
    *,
    load: LoadOptions,
    limits: LimitOptions,
    decision: RecommendOptions,
    case: ProbedCaseOptions,
    candidates: CandidateOptions,
) -> ShownAnswer:
    """Find which GPU profile, and how many replicas, serve an LLM at the lowest cost.

    Returns
    -------
    ShownAnswer
        The recommendation; a row of its frame per GPU profile.

    Raises
    ------
    InputError
        A keyword is wrong, or the measurements cannot answer.

    Examples
    --------
    >>> import sextant
    >>> answer = sextant.recommend(
    ...     llm="google__flan-ul2", source="archive:llm-pilot", users=50, nttft_ms=100, itl_ms=50
    ... )
    >>> answer.to_dict()["basis"]
    'measured'
    """
    if decision.trace is None:
        refuse(decision, "there is no trace", "llm_in_trace", "service_in_trace")
    else:
        return _recommend_for_trace(decision, load, limits, case, candidates)

    if decision.usd_per_month is not None:
        return _recommend_for_budget(
            decision.usd_per_month, decision, load, limits, case, candidates
        )

    from sextant.ask.variation import parse_variants
    from sextant.recommend.document import recommendation_document
    from sextant.recommend.recommend import recommend_llm

    variants = parse_variants(decision.vary or ())
    slo = slo_of_options(case, load, limits, decision.max_failed)
    question = case.question(
        slo,
        predictor=decision.predictor,
        decision=decision.decision,
        risk=decision.risk,
        is_disaggregated=decision.disaggregated,
        **candidates.of(),
    )
    answer = recommend_llm(question, variants)
    return shown_options(
        answer, lambda is_page: recommendation_document(answer, has_widget=is_page)
    )


def _recommend_for_budget(
    usd_per_month: float,
    decision: RecommendOptions,
    load: LoadOptions,
    limits: LimitOptions,
    case: ProbedCaseOptions,
    candidates: CandidateOptions,
) -> ShownAnswer:
    """Return the largest request rate that a budget serves."""
    from sextant.recommend.budget import recommend_for_budget

    refuse_varied_budget(decision.vary)
    if load != LoadOptions():
        loads = "--usd-per-month, --users, --request-rate, --tokens-per-day"
        problem = "a budget and a load are given"
        raise InputError(problem, field=loads, fix="give exactly one of them")
    if decision.disaggregated:
        fix = "give --request-rate in place of the budget"
        problem = "pools are sized at a stated rate"
        raise InputError(problem, field="--disaggregated", fix=fix)
    slo = slo_of_options(case, LoadOptions(request_rate=1.0), limits, decision.max_failed)
    question = case.question(
        slo, predictor=decision.predictor, risk=decision.risk, **candidates.of()
    )
    return shown_budget(recommend_for_budget(question, usd_per_month))


def _recommend_for_trace(
    decision: RecommendOptions,
    load: LoadOptions,
    limits: LimitOptions,
    case: ProbedCaseOptions,
    candidates: CandidateOptions,
) -> ShownAnswer:
    """Return the answer of `capacity` to the traffic of a trace."""
    from sextant.api import capacity, traffic

    if decision.disaggregated:
        fix = "give --request-rate in place of the trace"
        problem = "pools are sized at a steady rate"
        raise InputError(problem, field="--disaggregated", fix=fix)
    if load != LoadOptions():
        loads = "--trace, --users, --request-rate, --tokens-per-day"
        raise InputError("two loads are given", field=loads, fix="give exactly one of them")

    shares: dict[str, Any] = {"max_failed": decision.max_failed, "risk": decision.risk}
    shares = {name: value for name, value in shares.items() if value is not None}
    question = capacity.capacity_question(
        traffic.TrafficOptions(
            trace=decision.trace,
            llm_in_trace=decision.llm_in_trace,
            service_in_trace=decision.service_in_trace,
        ),
        capacity.PromiseOptions(limits=limits, keep=capacity.KeepOptions(**shares)),
        case,
        candidates,
        traffic.SchedulerOptions(),
        capacity.SearchOptions(vary=decision.vary),
    )
    notes = (_SIMULATED,)
    if decision.usd_per_month is not None:
        refuse_varied_budget(decision.vary)
        return capacity.answer_traffic_budget(question, decision.usd_per_month, notes)
    return capacity.answer_traffic(question, notes=notes)

"""Answer a question about one LLM: from its own points if they answer, else from a predictor."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sextant.answer.certainty import list_frontier, price_certainty
from sextant.answer.drafting import DraftGain, drafting_notes
from sextant.answer.option import Option
from sextant.answer.pools import pools_note
from sextant.answer.words import chance_words
from sextant.ask.case import Case, read_case
from sextant.ask.question import Question
from sextant.ask.variation import Variant
from sextant.base.errors import InputError
from sextant.deploy.settings import settings_of
from sextant.facts.slo import METRICS
from sextant.law.energy import Energy as EnergyLaw
from sextant.points.frame import LENGTHS
from sextant.recommend.cost import (
    answer_energy,
    api_comparison,
    fit_energy,
    no_api_note,
    price_tokens,
    with_energy,
)
from sextant.recommend.decision import Decision, decide_case
from sextant.recommend.measured import recommend_measured
from sextant.recommend.options import (
    broken_notes,
    cliff_notes,
    far_measurements,
    find_safest,
    list_changes,
    list_profiles,
    nearest_measurements,
    offered_options,
    own_measurements,
)
from sextant.recommend.recommendation import (
    Findings,
    MeasuredRecommendation,
    PredictedRecommendation,
    Recommendation,
)
from sextant.recommend.variations import vary_measured, vary_predicted
from sextant.recommend.ways import options_on_unmeasured_gpus, other_ways


def recommend_llm(question: Question, variants: Sequence[Variant] = ()) -> Recommendation:
    """Recommend a GPU profile and a number of replicas for one LLM.

    Where the LLM's own points do not answer, price is weighed against probability, by joint draws
    of the latencies or by simulating arrivals at random (docs/predictor.md, "Decision").

    Args:
        question: what is asked.
        variants: other values of its numbers, each with its own option.

    Raises:
        InputError: an option is wrong, or the characterization cannot answer.
    """
    case = _without_gaps(read_case(question))
    if case.is_answered_by_points or case.is_answered_by_rates or case.is_answered_by_failures:
        measured = recommend_measured(case)
        if measured.has_option or not _is_predictable(case):
            return replace(measured, variations=vary_measured(case, measured.chosen, variants))
        case = replace(case, notes=(*case.notes, *_unlikely_notes(measured)))

    if case.unborne:
        case = case.excluding(case.unborne)
    decision, gains = decide_case(case)
    answer = _answer(decision, gains, case.outside_clauses())
    return replace(answer, variations=vary_predicted(decision, variants))


def _without_gaps(case: Case) -> Case:
    """Return the case without limits on the time between tokens where all answers have one token,
    with a note that says so. Where no other limit is left, the case is as it was.

    Raises InputError: requests that are predicted have no other limit.
    """
    question = case.question
    slo = question.slo
    gaps = [name for name in ("itl", "tpot") if name in slo.limits]
    points = case.source.characterization.points
    measured = points.loc[points["llm_id"] == case.llm_id, "output_tokens"].dropna()
    are_measured = len(measured) > 0 and not (measured > 1).any()
    is_one = question.requests is None and (are_measured or case.mean_lengths[LENGTHS[1]] <= 1)
    if not gaps or not is_one:
        return case
    if len(gaps) == len(slo.limits):
        if case.is_answered_by_points:
            return case
        problem = "answers of 1 token have no time between tokens"
        fix = "limit the TTFT or the E2E (--ttft-ms, --e2e-ms)"
        raise InputError(problem, field=f"--{gaps[0]}-ms", fix=fix)
    unlimited: dict[str, Any] = {
        f"{name}_{field}": None for name in gaps for field in ("ms", "percentile")
    }
    names = " and ".join(METRICS[name] for name in gaps)
    said = f"Answers have one token: they have no {names}, and none to miss."
    question = replace(question, slo=replace(slo, **unlimited))
    return replace(case, question=question, notes=(*case.notes, said))


def _is_predictable(case: Case) -> bool:
    """Return whether a prediction may answer where measured rates are not likely enough: some
    candidate is not found to miss its limits at the lowest measured rate."""
    if case.is_answered_by_points or case.is_answered_by_failures:
        return False
    return any(profile_id not in case.unborne for profile_id in case.candidates)


def _unlikely_notes(measured: MeasuredRecommendation) -> list[str]:
    """Return what the measured rates alone would have said."""
    miss = measured.nearest_miss
    return [f"By the measured rates alone: {chance_words(miss)}."] if miss is not None else []


def _answer(
    decision: Decision, gains: Sequence[DraftGain], outside: Sequence[str]
) -> PredictedRecommendation:
    """Put the answer together: the decision, what else can be said of it, and what to know."""
    case = decision.case
    question = case.question
    chosen = decision.chosen
    forecast = decision.weighing.forecast
    sizer = decision.weighing.sizer

    api = None
    if decision.headroom is not None:
        api = api_comparison(case, chosen, decision.rows, decision.headroom, case.lengths[0])
    energy_law = fit_energy(forecast)
    unmeasured = options_on_unmeasured_gpus(decision)
    findings = _findings(decision, gains, unmeasured.options, energy_law)
    outcomes = list_profiles(decision.weighing, decision.options, chosen)
    pools_notes = []
    if question.is_disaggregated and sizer is not None:
        pools_notes = [pools_note(findings.pools, chosen)]
    return PredictedRecommendation(
        llm_id=case.llm_id,
        basis=question.predictor,
        chosen=chosen,
        alternatives=with_energy(forecast, energy_law, outcomes),
        slo=question.slo,
        llm=case.configured_llm,
        risk=question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        settings_on=partial(settings_of, case),
        warnings=[
            *decision.basis_notes(outside),
            *broken_notes(forecast),
            *drafting_notes(question, gains),
            *unmeasured.notes,
            *pools_notes,
            *decision.rate_notes(),
            *cliff_notes(findings.sensitivity, chosen),
            *no_api_note(question, chosen, api),
        ],
        serving=case.serving,
        headroom=decision.headroom,
        api=api,
        widget=decision.weighing.widget,
        decision=question.decision,
        # Only some sources say how their LLMs were executed.
        execution=case.execution[case.llm_id] if case.source.characterization.features else None,
        arrivals=sizer.kind if sizer else None,
        has_probe=question.probe is not None,
        outside=outside,
        contradictions=far_measurements(forecast.calibration, question.slo),
        findings=findings,
    )


def _findings(
    decision: Decision,
    gains: Sequence[DraftGain],
    unmeasured: Sequence[Option],
    energy_law: EnergyLaw | None,
) -> Findings:
    """Return what else can be said of a decision."""
    case = decision.case
    weighing = decision.weighing
    slo = case.question.slo
    chosen = decision.chosen

    frontier = list_frontier(offered_options(decision.rows), case.question.risk)
    cost = energy = None
    evidence = own_measurements(weighing.forecast, chosen.gpu_profile_id, slo)
    if decision.replica is not None:
        profile_id = str(chosen.gpu_profile_id)
        cost = price_tokens(weighing, chosen, decision.replica)
        energy = answer_energy(weighing.forecast, energy_law, profile_id, decision.replica.users)
        nearest = nearest_measurements(case, profile_id, slo)
        evidence += [near for near in nearest if near not in evidence]
    return Findings(
        latency=decision.replica,
        cost=cost,
        energy=energy,
        evidence=evidence,
        frontier=frontier,
        certainty=price_certainty(frontier, weighing.cause_of),
        unmeasured=unmeasured,
        ways=other_ways(decision),
        drafting=gains,
        pools=weighing.separate_pools(),
        nearest_miss=decision.nearest_miss,
        safest=find_safest(decision.options, chosen),
        sensitivity=list_changes(weighing),
        best_probe=weighing.most_telling_profile(),
    )

"""A recommendation from joint draws of latencies: price is weighed against probability."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.drafting import DraftGain, drafting_gains, drafting_notes
from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption, pools_note, size_pools
from sextant.answer.words import deployment_words
from sextant.ask.case import Case
from sextant.ask.caveats import estimates, outside_warning
from sextant.ask.forecast import Fitted, fit_predictor, make_predictor
from sextant.ask.laws import Settings, server_laws
from sextant.decide.decision import FAIR, best_probe
from sextant.decide.headroom import Headroom
from sextant.pages.blocks import Widget
from sextant.pages.words import chance
from sextant.recommend.cost import (
    answer_energy,
    expect_rate,
    expect_users,
    fit_energy,
    price_tokens,
    with_energy,
)
from sextant.recommend.evidence import nearest_measurements
from sextant.recommend.options import (
    choose_option,
    cliff_notes,
    find_nearest_miss,
    find_safest,
    list_changes,
    list_frontier,
    list_profiles,
)
from sextant.recommend.own_or_api import api_comparison, no_api_note, steady_note
from sextant.recommend.rate import rate_notes, target_of
from sextant.recommend.recommendation import (
    Findings,
    NearestMiss,
    NearMeasurement,
    PredictedRecommendation,
    ReplicaForecast,
)
from sextant.recommend.ways import Place, as_likely, other_ways, weigh_way
from sextant.recommend.weighing import Weighing, weigh_case

if TYPE_CHECKING:
    from sextant.law.energy import Energy as EnergyLaw

_FEW_USERS = 8
"""Users of a replica at which drafts are compared where no replica serves a request rate."""


@dataclass(frozen=True)
class _Decision:
    """The chosen option of a weighed case, and what it stands among."""

    weighing: Weighing
    options: pd.DataFrame
    chosen: Option
    replica: ReplicaForecast | None
    """None: nothing is recommended."""
    headroom: Headroom | None
    nearest_miss: NearestMiss | None
    """Where nothing is recommended."""

    @property
    def place(self) -> Place:
        """Where drafts are compared: at the load of the answer, or of the nearest miss."""
        if self.nearest_miss is not None:
            miss = self.nearest_miss.option
            return Place(str(miss.gpu_profile_id), miss.users_per_replica or _FEW_USERS)
        users = self.replica.users if self.replica else None
        return Place(str(self.chosen.gpu_profile_id), users or _FEW_USERS)


def recommend_predicted(case: Case) -> PredictedRecommendation:
    """Size the replicas by joint draws of the latencies, or by simulating arrivals at random.

    Raises:
        InputError: the predictor draws no samples, or too few LLMs were measured.
    """
    gpu_profiles = {
        **case.source.characterization.profiles,
        **case.gpu_profiles,
        **case.unmeasured_profiles(),
    }
    model = make_predictor(case.question, gpu_profiles)
    case.excluded  # noqa: B018  raises InputError where no candidate can serve the LLM
    clauses = case.outside_clauses()

    fitted = fit_predictor(model, case, case.question.slo)
    decision = _decide(case, fitted)
    gains = _drafting_gains(decision, fitted)
    best_draft = gains[0].draft_tokens if gains else 1
    if case.question.speculative and case.question.draft_tokens is None and best_draft != 1:
        case = case.varied({"draft_tokens": best_draft})
        fitted = fit_predictor(model, case, case.question.slo)
        decision = _decide(case, fitted)
        gains = _drafting_gains(decision, fitted)
    return _answer(decision, fitted, gains, clauses)


def _decide(case: Case, fitted: Fitted) -> _Decision:
    """Weigh the options of a case, and choose one."""
    slo = case.question.slo
    weighing = weigh_case(fitted.forecast(case, slo))
    options = weighing.options()
    chosen = choose_option(weighing, options)
    if chosen.gpu_profile_id is None:
        miss = find_nearest_miss(weighing, options)
        return _Decision(weighing, options, chosen, None, None, miss)
    if weighing.sizer is not None:
        replica, headroom = expect_rate(weighing, chosen)
    else:
        replica, headroom = expect_users(weighing, chosen, options)
    return _Decision(weighing, options, chosen, replica, headroom, None)


def _drafting_gains(decision: _Decision, fitted: Fitted) -> list[DraftGain]:
    """Return what the speculation that is asked for gains; nothing where it is not."""
    case = decision.weighing.case
    if not case.question.speculative:
        return []
    operating_point = decision.place
    return drafting_gains(case, fitted.model, operating_point.gpu_profile_id, operating_point.users)


def _answer(
    decision: _Decision, fitted: Fitted, gains: Sequence[DraftGain], clauses: Sequence[str]
) -> PredictedRecommendation:
    """Put the answer together: what else can be said of the decision, and what to know of it."""
    weighing = decision.weighing
    case = weighing.case
    question = case.question
    chosen = decision.chosen
    api = None
    if decision.headroom is not None:
        lengths = case.lengths[0]
        api = api_comparison(case, chosen, decision.options, decision.headroom, lengths)

    energy_law = fit_energy(weighing.forecast)
    unmeasured = _on_unmeasured_gpus(decision, fitted)
    findings = _findings(decision, fitted, gains, unmeasured.options, energy_law)
    outcomes = list_profiles(weighing, decision.options, chosen)
    calibration = weighing.forecast.calibration
    return PredictedRecommendation(
        llm_id=case.llm_id,
        basis=question.predictor,
        chosen=chosen,
        alternatives=with_energy(weighing, energy_law, outcomes),
        slo=question.slo,
        llm=case.configured_llm,
        risk=question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        warnings=[
            *_basis_notes(weighing, fitted, clauses),
            *drafting_notes(question, gains),
            *unmeasured.notes,
            *([pools_note(findings.pools, chosen)] if _asks_for_pools(weighing) else []),
            *_rate_notes(decision),
            *cliff_notes(findings.sensitivity, chosen),
            *no_api_note(question, chosen, api),
        ],
        serving=case.serving,
        headroom=decision.headroom,
        api=api,
        widget=lambda: _widget(weighing),
        decision=question.decision,
        # Only some sources say how their LLMs were executed.
        execution=case.execution[case.llm_id] if case.source.characterization.features else None,
        arrivals=weighing.sizer.kind if weighing.sizer else None,
        has_probe=question.probe is not None,
        outside=clauses,
        contradictions=calibration.contradictions() if calibration else [],
        findings=findings,
    )


def _findings(
    decision: _Decision,
    fitted: Fitted,
    gains: Sequence[DraftGain],
    unmeasured: Sequence[Option],
    energy_law: "EnergyLaw | None",
) -> Findings:
    """Return what else can be said of a decision."""
    weighing = decision.weighing
    case = weighing.case
    slo = case.question.slo
    chosen = decision.chosen
    cost = energy = None
    evidence: list[NearMeasurement] = []
    if decision.replica is not None:
        profile_id = str(chosen.gpu_profile_id)
        cost = price_tokens(weighing, chosen, decision.replica)
        users = decision.replica.users
        energy = answer_energy(weighing.forecast, energy_law, profile_id, users)
        evidence = nearest_measurements(case, profile_id, slo)
    return Findings(
        latency=decision.replica,
        cost=cost,
        energy=energy,
        evidence=evidence,
        frontier=list_frontier(decision.options, case.question.risk),
        unmeasured=unmeasured,
        ways=other_ways(weighing, fitted, chosen, decision.place),
        drafting=gains,
        pools=_separate_pools(weighing),
        nearest_miss=decision.nearest_miss,
        safest=find_safest(decision.options, chosen),
        sensitivity=list_changes(weighing),
        best_probe=best_probe(weighing.draws, case.gpu_profiles, [slo]),
    )


def _basis_notes(weighing: Weighing, fitted: Fitted, clauses: Sequence[str]) -> list[str]:
    """Return what the answer rests on and assumes, one sentence each."""
    case = weighing.case
    question = case.question
    source = case.source
    notes = outside_warning(clauses, source)
    if question.requests is None and not case.is_measured:
        inputs, outputs = case.lengths[0]
        text = f"No lengths were given: the answer is for requests of {inputs:.0f} input and "
        text += f"{outputs:.0f} output tokens, those of {source.characterization.source}. "
        notes.append(f"{text}Give --input-tokens and --output-tokens, or --workload.")
    notes += [*case.notes, *source.characterization.left_out, *case.naming_notes()]
    if question.prefix_hit_rate and not fitted.has_steps:
        notes.append(f"--prefix-hit-rate is not used: {question.predictor} does not know it.")
    if weighing.sizer is None:  # else each percentile is that of the simulated requests
        notes += estimates(source.characterization.points, question.slo)
    return notes


def _rate_notes(decision: _Decision) -> list[str]:
    """Return how a request rate was sized; nothing where users are asked for."""
    weighing = decision.weighing
    slo = weighing.slo
    sizer = weighing.sizer
    if sizer is None:
        return steady_note(slo, "by Little's law at median latencies")
    # Without a recommendation: whether a longer run could make one.
    distance = abs(decision.options["probability_met"].max() - FAIR)
    is_one_draw_away = distance * (sizer.n_draws(slo) + 1) <= 1
    has_no_answer = decision.chosen.gpu_profile_id is None and weighing.case.question.risk is None
    return rate_notes(sizer, slo, has_no_answer and is_one_draw_away)


class _Unmeasured(NamedTuple):
    """Options on GPUs that nobody measured, and what to say of them."""

    options: list[Option]
    notes: list[str]


def _on_unmeasured_gpus(decision: _Decision, fitted: Fitted) -> _Unmeasured:
    """Return options on GPUs that nobody measured, and what to say of them.

    They are weighed separately, so that the answer does not depend on them.
    """
    weighing = decision.weighing
    case = weighing.case
    chosen = decision.chosen
    chosen_usd = chosen.usd_per_hour
    is_limited = weighing.sizer is not None and chosen_usd is not None
    below_usd = chosen_usd if is_limited and chosen_usd is not None else np.inf
    gpu_profiles = {
        profile_id: gpu_profile
        for profile_id, gpu_profile in case.unmeasured_profiles().items()
        if gpu_profile.usd_per_hour < below_usd
    }
    options = weigh_way(case.varied({}, gpu_profiles), fitted, weighing.sizer, below_usd)
    if options is None:
        return _Unmeasured([], [])
    best = as_likely(options, chosen, case.question.risk)
    listed = options[options["probability_met"] >= FAIR]
    frontier = list_frontier(listed, case.question.risk)
    if best.usd_per_hour is None or (chosen_usd is not None and best.usd_per_hour >= chosen_usd):
        return _Unmeasured(frontier, [])
    note = (
        f"{'Cheaper' if chosen.gpu_profile_id else 'Likely'} on a GPU that nobody measured: "
        f"{deployment_words(best)}, with probability {chance(best.probability_met or 0.0)}, "
        "predicted from other GPUs. Measure it before you rent it (--probe); --measured-only "
        "leaves such GPUs out."
    )
    return _Unmeasured(frontier, [note])


def _asks_for_pools(weighing: Weighing) -> bool:
    return weighing.case.question.is_disaggregated and weighing.sizer is not None


def _separate_pools(weighing: Weighing) -> PoolsOption | None:
    """Return prefill and decode on separate replicas, where they are asked for."""
    sizer = weighing.sizer
    if sizer is None or not _asks_for_pools(weighing):
        return None
    n_draws = next(iter(sizer.servers.values())).n_draws - 1

    return size_pools(
        weighing.case,
        lambda case: server_laws(case, Settings(), n_draws, sizer.model)[0],
        sizer.traffic_of(weighing.slo),
        target_of(weighing.slo),
        sizer.confidence,
    )


def _widget(weighing: Weighing) -> Widget | None:
    """Return the part of the page in which the question can be changed."""
    from sextant.recommend.what_if import of_arrivals, of_draws, what_if_widget

    case = weighing.case
    question = case.question
    if question.decision != "utility":
        return None
    prices = {name: profile.usd_per_hour for name, profile in case.gpu_profiles.items()}
    if weighing.sizer is not None:
        needed = partial(weighing.sizer.needed, profile_ids=case.candidates)
        return what_if_widget(of_arrivals(needed, prices, question.slo), question.risk)
    calibration = weighing.forecast.calibration
    measured = calibration.points if calibration else None
    basis = of_draws(weighing.draws, prices, question.slo, measured)
    return what_if_widget(basis, question.risk)

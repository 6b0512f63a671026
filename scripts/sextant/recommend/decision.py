"""The decision of a predicted case: a fit, weighed options, the chosen one, and its replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from sextant.answer.drafting import DraftGain, drafting_gains
from sextant.answer.option import Option
from sextant.answer.rate_sizer import LITTLES_LAW, steady_note
from sextant.ask.case import Case
from sextant.ask.caveats import outside_warning
from sextant.ask.forecast import Fitted, fit_predictor, make_predictor
from sextant.decide.headroom import Headroom
from sextant.predict.predictor import JointPredictor
from sextant.recommend.cost import expect_rate, expect_users
from sextant.recommend.options import choose_option, find_nearest_miss
from sextant.recommend.recommendation import NearestMiss, ReplicaForecast, WeighedRow
from sextant.recommend.weighing import Weighing, weigh_case, weighed_rows

_FEW_USERS = 8
"""Users of a replica at which drafts are compared where no replica serves a request rate."""


class OperatingPoint(NamedTuple):
    """A GPU profile at a load of a replica."""

    gpu_profile_id: str
    users: int


@dataclass(frozen=True)
class Decision:
    """The chosen option of a case, and what it was chosen from."""

    fitted: Fitted
    weighing: Weighing
    options: pd.DataFrame
    """All options, weighed (`Weighing.options`)."""
    rows: Sequence[WeighedRow]
    """The same, typed."""
    chosen: Option
    replica: ReplicaForecast | None
    """None: nothing is recommended."""
    headroom: Headroom | None
    nearest_miss: NearestMiss | None
    """Where nothing is recommended."""

    @property
    def case(self) -> Case:
        """The LLM, and how it is served."""
        return self.weighing.case

    @property
    def operating_point(self) -> OperatingPoint:
        """Where drafts are compared: at the load of the answer, or of the nearest miss."""
        if self.nearest_miss is not None:
            miss = self.nearest_miss.option
            return OperatingPoint(str(miss.gpu_profile_id), miss.users_per_replica or _FEW_USERS)
        users = self.replica.users if self.replica else None
        return OperatingPoint(str(self.chosen.gpu_profile_id), users or _FEW_USERS)

    def drafting_gains(self) -> list[DraftGain]:
        """Return what drafts gain at the operating point, best first."""
        return drafting_gains(self.case, self.fitted.model, *self.operating_point)

    def basis_notes(self, outside: Sequence[str]) -> list[str]:
        """Return what the answer rests on and assumes, one sentence each.

        `outside` says in what the question lies outside of the measurements.
        """
        case = self.case
        question = case.question
        source = case.source
        notes = [*case.failure_notes, *outside_warning(outside, source)]
        notes += case.lengths_notes
        notes += [*case.notes, *source.left_out_notes, *self.fitted.notes, *case.assumed_notes()]
        notes += case.probe_notes(has_steps=self.weighing.sizer is not None)
        if question.prefix_hit_rate and not self.fitted.has_steps:
            notes.append(f"--prefix-hit-rate is not used: {question.predictor} does not know it.")
        if self.weighing.sizer is None:  # else each percentile is that of the simulated requests
            notes += self.fitted.percentile_notes(case, question.slo)
        return notes

    def rate_notes(self) -> list[str]:
        """Return how a request rate was sized; nothing where users are asked for."""
        slo = self.weighing.slo
        sizer = self.weighing.sizer
        if sizer is None:
            return steady_note(slo, LITTLES_LAW)
        return sizer.notes()


class Decided(NamedTuple):
    """A decision, and what drafts of several lengths gain."""

    decision: Decision
    gains: Sequence[DraftGain]


def decide_case(case: Case) -> Decided:
    """Decide a predicted case, with the best number of draft tokens where none is stated.

    Raises:
        InputError: the characterization cannot answer.
    """
    gpu_profiles = {
        **case.source.characterization.profiles,
        **case.gpu_profiles,
        **case.unmeasured_profiles(),
    }
    model = make_predictor(case.question, gpu_profiles)
    case.excluded  # noqa: B018  raises InputError where no candidate can serve the LLM

    decision = decide(case, model)
    gains = decision.drafting_gains() if case.question.speculative else []
    if gains and case.question.draft_tokens is None and gains[0].draft_tokens != 1:
        decision = decide(case.varied({"draft_tokens": gains[0].draft_tokens}), model)
        gains = decision.drafting_gains()
    return Decided(decision, gains)


def decide(case: Case, model: JointPredictor) -> Decision:
    """Fit a predictor, weigh the options of a case, and choose one.

    Raises:
        InputError: too few LLMs were measured, or the predictor does not know speculation.
    """
    slo = case.question.slo
    fitted = fit_predictor(model, case, slo)
    weighing = weigh_case(fitted.forecast(case, slo))
    options = weighing.options()
    rows = weighed_rows(options)
    chosen = choose_option(weighing, options)

    replica = headroom = nearest_miss = None
    if chosen.gpu_profile_id is None:
        nearest_miss = find_nearest_miss(weighing, rows)
    elif weighing.sizer is not None:
        replica, headroom = expect_rate(weighing, chosen)
    else:
        replica, headroom = expect_users(weighing, chosen, rows)
    return Decision(fitted, weighing, options, rows, chosen, replica, headroom, nearest_miss)

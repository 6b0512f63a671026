"""What speculative decoding gains at a load, by the length of the draft."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from sextant.ask.case import Case
from sextant.ask.forecast import draw_latencies
from sextant.ask.laws import DRAFTED_ITL, CaseLaws
from sextant.ask.question import SPECULATION, Question
from sextant.base.errors import InputError
from sextant.decide.decision import FAIR
from sextant.facts.answer_times import answer_ms
from sextant.pages.words import chance, plural
from sextant.predict.predictor import INTERVAL, JointPredictor

_DRAFT_LENGTHS = (1, 2, 3, 5)
"""Draft tokens that are compared."""
_OF_A_RATE = (
    "The rate that a replica bears rises by another factor, mostly a smaller one: it then serves "
    "more users at once, and drafts gain less."
)
USUAL_METHOD = "eagle3"
"""What drafts by default: heads are published for many LLMs, and can be trained for others."""


@dataclass(frozen=True)
class DraftGain:
    """What a length of the draft gains in requests a second of as many users."""

    gpu_profile_id: str
    method: str
    draft_tokens: int
    accepted_length: float | None
    """Tokens that a step emits."""
    gain: float
    """Median over joint draws of law and acceptance, a fraction."""
    gain_lo: float
    """Ends of the 90% interval."""
    gain_hi: float
    probability_gain: float
    """That the gain is above 0."""

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return asdict(self)


@dataclass(frozen=True)
class BestDraft:
    """The best length of the draft at one load; 0 tokens where none is likely to gain."""

    draft_tokens: int
    gain: float
    probability_gain: float | None


def drafting_gains(
    case: Case, model: JointPredictor, profile_id: str, users: int
) -> list[DraftGain]:
    """Return what speculation gains at one load, one gain per length of the draft, best first.

    Args:
        case: the LLM, with or without speculation.
        model: a fitted predictor.
        profile_id: where it is served.
        users: of the replica.
    """
    question = case.question
    method = question.speculative or USUAL_METHOD
    n_asked = question.draft_tokens or 1
    # A person's own acceptance says nothing of other lengths.
    draft_lengths = [n_asked] if question.acceptance else sorted({*_DRAFT_LENGTHS, n_asked})
    inputs, outputs = case.lengths[0]
    gpu_profiles = {profile_id: case.gpu_profiles[profile_id]}

    def request_ms(way: Case) -> np.ndarray:
        way.excluded  # noqa: B018  raises InputError where the LLM does not fit
        rows = way.rows_at(model, [users], [profile_id])
        samples_ms = draw_latencies(model, way, rows)[:, 0]
        return answer_ms(samples_ms[:, 0] * inputs, samples_ms[:, 1], outputs)

    plain = case.varied(dict.fromkeys(SPECULATION), gpu_profiles)
    without_ms = request_ms(plain)
    gains = []
    for n_tokens in draft_lengths:
        drafted = case.varied({"speculative": method, "draft_tokens": n_tokens}, gpu_profiles)
        try:
            gain = without_ms / request_ms(drafted) - 1
        except InputError:  # the draft leaves no memory
            continue
        low, median, high = np.quantile(gain, [INTERVAL[0], 0.5, INTERVAL[1]])
        gains.append(
            DraftGain(
                profile_id,
                method,
                n_tokens,
                drafted.serving.accepted_length,
                float(median),
                float(low),
                float(high),
                probability_gain=float((gain > 0).mean()),
            )
        )
    return sorted(gains, key=lambda gain: -gain.gain)


def draft_by_load(
    laws: CaseLaws, profile_id: str, users_by_slot: Sequence[float]
) -> list[BestDraft]:
    """Return the best draft at each of these loads of a replica, rounded to powers of two."""

    @cache
    def best(users: int) -> BestDraft:
        gains = drafting_gains(laws.case, laws.model, profile_id, users)
        if gains and gains[0].probability_gain > FAIR:
            return BestDraft(gains[0].draft_tokens, gains[0].gain, gains[0].probability_gain)
        return BestDraft(0, 0.0, None)

    return [best(2 ** round(math.log2(max(users, 1)))) for users in users_by_slot]


def speed_words(gain: DraftGain) -> str:
    """Return how fast as many users are answered, e.g. `1.91 times as fast (90% interval …)`."""
    speed, low, high = (1 + it for it in (gain.gain, gain.gain_lo, gain.gain_hi))
    return f"{speed:.2f} times as fast (90% interval {low:.2f} to {high:.2f})"


def drafting_notes(question: Question, gains: Sequence[DraftGain]) -> list[str]:
    """Return whether the speculation that is asked for pays, one sentence each."""
    if question.speculative is None:
        return []
    notes = []
    for gain in gains:
        if gain.draft_tokens != (question.draft_tokens or 1):
            continue
        pays = "pays" if gain.probability_gain > FAIR else "does not pay"
        notes.append(
            f"Speculation {pays} at this load: with {gain.method} and "
            f"{plural(gain.draft_tokens, 'draft token')} as many users are answered "
            f"{speed_words(gain)}, faster with probability {chance(gain.probability_gain)}, where "
            f"a step emits {gain.accepted_length:.2f} tokens."
        )
        if question.slo.request_rate_rps is not None:
            notes.append(_OF_A_RATE)
    if question.acceptance is not None:
        is_share = question.acceptance <= 1
        read_as = "share of the draft tokens that are accepted" if is_share else "tokens of a step"
        notes.append(f"--acceptance {question.acceptance:g} is read as the {read_as}.")
    if "itl" in question.slo.limits:
        notes.append(DRAFTED_ITL)
    return notes

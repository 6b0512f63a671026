"""Other ways to serve the LLM of an answer: precisions, speculation, and what each is worth.

The answer is for the LLM as it is asked about; which of these its quality allows is for the person
to say. Each way is one option of `sextant recommend` away; fewer GPU profiles are simulated for it
than for an answer, so that its probability may differ by a draw or two.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sextant.ask.candidates import Asked, Subject, subject_of
from sextant.ask.forecast import draw_rows
from sextant.ask.laws import DRAFTED_ITL, LLMLaws
from sextant.ask.question import PARALLEL, SPECULATION, Question
from sextant.base.errors import InputError
from sextant.base.files import Row
from sextant.decide.decision import FAIR
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM, kv_precision_of, precision_of
from sextant.pages.words import chance, percent, plural
from sextant.predict.draws import INTERVAL
from sextant.predict.predictor import JointPredictor

_DRAFTS = (1, 2, 3, 5)  # Draft tokens that are compared.
_HEAD = "eagle3"
"""What drafts by default: heads are published for many LLMs, and can be trained for others."""
_NOT_JUDGED = "its quality is not judged here"
_RISKS = {
    "fp8": f"8-bit weights: {_NOT_JUDGED}, often close",
    "nvfp4": f"4-bit weights: {_NOT_JUDGED}",
    "int4": f"4-bit weights: {_NOT_JUDGED}",
}
_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}


class Way(NamedTuple):
    """One way to serve an LLM other than the asked one."""

    name: str  # with `{n}` for the GPUs of a replica
    changes: Mapping[str, Any]  # fields of a question
    risk: str

    def of(self, question: Question) -> Question:
        """Return the question of this way."""
        return replace(question, **self.changes)

    def goes_with(self, other: "Way") -> bool:
        """Return whether both can be had at once."""
        return self.changes.keys().isdisjoint(other.changes)

    def beside(self, other: "Way") -> "Way":
        """Return both ways together."""
        name, risk = f"{self.name}, {other.name}", f"{self.risk}; {other.risk}"
        return Way(name, {**self.changes, **other.changes}, risk)


def ways_of(given: Question, llm: LLM) -> list[Way]:
    """Return the ways that a question leaves open: an option that it gives is not varied."""
    found, bits = [], _BITS.get(precision_of(llm), 4)
    if given.dtype is None:
        found += [
            Way(f"{name.upper()} weights (--dtype {name})", {"dtype": name}, risk)
            for name, risk in _RISKS.items()
            if _BITS.get(name, 4) < bits
        ]
    if given.kv_dtype is None and _BITS.get(kv_precision_of(llm), 4) > _BITS["fp8"]:
        risk = f"8-bit KV cache: {_NOT_JUDGED}, long contexts may suffer"
        found.append(Way("FP8 KV cache (--kv-dtype fp8)", {"kv_dtype": "fp8"}, risk))
    if llm.n_experts and given.data_parallel is given.expert_parallel is None:
        found += [
            Way(
                "EP {n} (--expert-parallel all)",
                {"expert_parallel": math.inf, "data_parallel": None},
                "the busiest GPU holds up the others: measured TPOT is 2 to 33% higher than said",
            ),
            Way(
                "attention DP {n}, EP {n} (--data-parallel all)",
                {"data_parallel": math.inf, "expert_parallel": None},
                "with few users a prompt has one GPU to itself: TTFT may be far longer than said",
            ),
        ]
    return found


def speculation(draft_tokens: int, method: str = _HEAD) -> Way:
    """Return the way that speculates with so many draft tokens."""
    changes = {"speculative": method, "draft_tokens": draft_tokens}
    name = f"speculation (--speculative {method} --draft-tokens {draft_tokens})"
    return Way(
        name,
        changes,
        f"needs {method} trained for this LLM; gains less where fewer drafts are accepted",
    )


def can_run(profile: GPUProfile, way: Way) -> bool:
    """Return whether a GPU profile has what a way needs: units for its numbers, several GPUs."""
    gpu = profile.gpu
    if way.changes.keys() & {*PARALLEL} and profile.n_gpus == 1:
        return False
    needed = {"fp8": gpu.dense_fp8_tflops, "nvfp4": gpu.dense_fp4_tflops}
    return all(needed.get(way.changes.get(name, ""), 1) for name in ("dtype", "kv_dtype"))


def drafting_gains(
    asked: Asked, model: JointPredictor, base: Subject, profile_id: str, users: int
) -> list[Row]:
    """Return what speculation gains at one load of a replica, one row per length of a draft. `gain`
    is that in requests/s of so many users, `gain_lo, gain_hi` its 90% interval, `probability_gain`
    that it is above 0: of joint draws of law and acceptance, with drafts and without. Best first.
    """
    question = asked.question
    method, n_asked = question.speculative or _HEAD, question.draft_tokens or 1
    # Of other lengths a person's own acceptance says nothing.
    tried = (n_asked,) if question.acceptance else sorted({*_DRAFTS, n_asked})
    inputs, outputs = base.lengths[0]

    def request_ms(subject: Subject) -> np.ndarray:
        rows = subject.rows_at(model, [users], [profile_id])
        samples_ms = draw_rows(model, subject, None, rows).samples_ms[:, 0]
        return np.asarray(samples_ms[:, 0] * inputs + samples_ms[:, 1] * max(outputs - 1, 0))

    own = {profile_id: base.profiles[profile_id]}
    nothing: dict[str, Any] = dict.fromkeys(SPECULATION)
    plain = replace(question, **nothing)
    without_ms, rows = request_ms(_subject(plain, asked, own)), []
    for n in tried:
        drafted = replace(question, speculative=method, draft_tokens=n)
        try:
            subject = _subject(drafted, asked, own)
        except InputError:  # the draft leaves no memory
            continue
        gain = without_ms / request_ms(subject) - 1
        low, median, high = np.quantile(gain, [INTERVAL[0], 0.5, INTERVAL[1]])
        rows.append(
            {
                "gpu_profile_id": profile_id,
                "method": method,
                "draft_tokens": n,
                "accepted_length": subject.serving.accepted_length,
                "gain": float(median),
                "gain_lo": float(low),
                "gain_hi": float(high),
                "probability_gain": float((gain > 0).mean()),
            }
        )
    return sorted(rows, key=lambda row: -row["gain"])


def draft_by_load(offer: LLMLaws, profile_id: str, users: Sequence[float]) -> list[Row]:
    """Return what drafts are worth at these loads of a replica: the best of `drafting_gains`,
    `draft_tokens` 0 where none is likely to gain. Loads become powers of two."""

    @cache
    def best(n: int) -> Row:
        gains = drafting_gains(offer.asked, offer.model, offer.subject, profile_id, n)
        none = {"draft_tokens": 0, "gain": 0.0, "probability_gain": None}
        return gains[0] if gains and gains[0]["probability_gain"] > FAIR else none

    return [best(2 ** round(math.log2(max(each, 1)))) for each in users]


def drafting_notes(question: Question, gains: Sequence[Row]) -> list[str]:
    """Return whether the speculation that is asked for pays."""
    if question.speculative is None:
        return []
    notes, of = [], [row for row in gains if row["draft_tokens"] == (question.draft_tokens or 1)]
    for row in of:
        ends = f"{percent(row['gain_lo'])} to {percent(row['gain_hi'])}"
        pays = "pays" if row["probability_gain"] > FAIR else "does not pay"
        notes.append(
            f"Speculation {pays} at this load: {row['method']} with "
            f"{plural(row['draft_tokens'], 'draft token')} changes the requests/s of as many users "
            f"by {percent(row['gain'])} (90% interval {ends}), a gain with probability "
            f"{chance(row['probability_gain'])}, where a step emits {row['accepted_length']:.2f} "
            "tokens."
        )
    if question.acceptance is None:
        notes.append(
            "That many tokens a step are those of coding prompts; others accept fewer. Give yours "
            "(--acceptance), as vLLM's log reports it."
        )
    if "itl" in question.slo.limits:
        notes.append(DRAFTED_ITL)
    return notes


def _subject(question: Question, asked: Asked, profiles: Mapping[str, GPUProfile]) -> Subject:
    return subject_of(question, asked.llm_id, asked.llm, asked.source, profiles)

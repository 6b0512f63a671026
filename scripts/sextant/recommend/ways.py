"""Other ways to serve the LLM of an answer: precisions, layouts, speculation, and what each costs.

The answer is for the LLM as it is asked about; the person judges which of these ways keeps enough
of its quality. Each way names the options of `sextant recommend` that ask for it. Fewer profiles
are simulated for a way than for an answer, so its probability may differ by a draw or two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.certainty import list_frontier
from sextant.answer.drafting import USUAL_METHOD
from sextant.answer.option import Option
from sextant.answer.rate_sizer import Cheapest
from sextant.answer.words import deployment_words
from sextant.ask.case import Case
from sextant.ask.question import PARALLEL, Question
from sextant.base.errors import InputError
from sextant.decide.decision import FAIR, SAFE, choose
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM, kv_precision_of, precision_of
from sextant.pages.words import chance, shown_chance
from sextant.recommend.decision import Decision
from sextant.recommend.options import offered_options, option_of
from sextant.recommend.recommendation import WayOption
from sextant.recommend.weighing import weigh_beside, weighed_rows

_PROFILES_PER_WAY = 3
"""GPU profiles that are simulated for each way."""
_NOT_JUDGED = "its quality is not judged here"
_RISKS = {
    "fp8": f"8-bit weights: {_NOT_JUDGED}, often close",
    "nvfp4": f"4-bit weights: {_NOT_JUDGED}",
    "int4": f"4-bit weights: {_NOT_JUDGED}",
}
_FP8_BITS = 8
_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": _FP8_BITS, "int8": 8}


class Way(NamedTuple):
    """One way to serve an LLM other than the asked one."""

    name: str
    """With `{n}` for the GPUs of a replica."""
    changes: Mapping[str, Any]
    """Fields of a question."""
    risk: str

    def goes_with(self, other: "Way") -> bool:
        """Return whether both can be had at once."""
        return self.changes.keys().isdisjoint(other.changes)

    def beside(self, other: "Way") -> "Way":
        """Return both ways together."""
        name = f"{self.name}, {other.name}"
        risk = f"{self.risk}; {other.risk}"
        return Way(name, {**self.changes, **other.changes}, risk)


def ways_of(stated: Question, llm: LLM) -> list[Way]:
    """Return the ways that a question leaves open: an option that it states is not varied."""
    ways = []
    bits = _BITS.get(precision_of(llm), 4)
    if stated.dtype is None:
        ways += [
            Way(f"{name.upper()} weights (--dtype {name})", {"dtype": name}, risk)
            for name, risk in _RISKS.items()
            if _BITS.get(name, 4) < bits
        ]
    if stated.kv_dtype is None and _BITS.get(kv_precision_of(llm), 4) > _FP8_BITS:
        risk = f"8-bit KV cache: {_NOT_JUDGED}, long contexts may suffer"
        ways.append(Way("FP8 KV cache (--kv-dtype fp8)", {"kv_dtype": "fp8"}, risk))
    if llm.n_experts and stated.data_parallel is stated.expert_parallel is None:
        ways += [
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
    return ways


def speculation_way(draft_tokens: int, method: str = USUAL_METHOD) -> Way:
    """Return the way that speculates with this number of draft tokens."""
    changes = {"speculative": method, "draft_tokens": draft_tokens}
    name = f"speculation (--speculative {method} --draft-tokens {draft_tokens})"
    risk = f"needs {method} trained for this LLM; gains less where fewer drafts are accepted"
    return Way(name, changes, risk)


def can_run(gpu_profile: GPUProfile, way: Way) -> bool:
    """Return whether a GPU profile has what a way needs: units for its numbers, several GPUs."""
    gpu = gpu_profile.gpu
    if way.changes.keys() & {*PARALLEL} and gpu_profile.n_gpus == 1:
        return False
    needed = {"fp8": gpu.dense_fp8_tflops, "nvfp4": gpu.dense_fp4_tflops}
    return all(needed.get(way.changes.get(name, ""), 1) for name in ("dtype", "kv_dtype"))


def other_ways(decision: Decision) -> list[WayOption]:
    """Return the ways to serve that are cheaper than the answer, or likelier where it is unsure.

    Cheapest first. Two ways together only where they are cheaper than the cheapest alone.
    """
    case = decision.case
    search = _WaySearch(decision)
    is_asked = case.question.decision == "utility" and decision.fitted.has_steps
    # A probe is of the LLM as it is asked about.
    if not (search.gpu_profiles and is_asked) or case.question.probe:
        return []

    ways = ways_of(case.stated, case.configured_llm)
    if case.question.speculative is None:
        gains = decision.drafting_gains()
        if gains and gains[0].probability_gain > FAIR:
            ways.append(speculation_way(gains[0].draft_tokens))

    single = [(option, way) for way in ways if (option := search.best(way, search.usd))]
    options = [option for option, _ in single]
    if single:  # with another one where that is cheaper still
        cheapest, way = min(single, key=lambda pair: pair[0].usd_per_hour)
        below_usd = float(np.nextafter(cheapest.usd_per_hour, 0))
        pairs = [way.beside(other) for other in ways if way.goes_with(other)]
        together = [search.best(pair, below_usd) for pair in pairs]
        options += [option for option in together if option is not None]
    return sorted(
        options,
        key=lambda option: (option.usd_per_hour, -(option.option.probability_met or 0.0)),
    )


@dataclass(frozen=True)
class _WaySearch:
    """Finds the best option of a way beside an answer."""

    decision: Decision

    @property
    def usd(self) -> float:
        """Price of the answer; infinite without one."""
        return self.decision.chosen.usd_per_hour or np.inf

    @property
    def gpu_profiles(self) -> dict[str, GPUProfile]:
        """Candidates with a replica that is cheaper than the answer.

        Where the answer is unsure, candidates at its price count, too: they may be likelier.
        """
        is_unsure = (self.decision.chosen.probability_met or 0.0) < SAFE
        return {
            profile_id: gpu_profile
            for profile_id, gpu_profile in self.decision.case.gpu_profiles.items()
            if gpu_profile.usd_per_hour < self.usd
            or (is_unsure and gpu_profile.usd_per_hour == self.usd)
        }

    def best(self, way: Way, most_usd: float) -> WayOption | None:
        """Return the best option of a way at this price or below; None: it is no better."""
        decision = self.decision
        able = {
            profile_id: gpu_profile
            for profile_id, gpu_profile in self.gpu_profiles.items()
            if gpu_profile.usd_per_hour <= most_usd and can_run(gpu_profile, way)
        }
        options = _weigh_like(
            decision,
            decision.case.varied(way.changes, able),
            Cheapest(most_usd, _PROFILES_PER_WAY),
        )
        if options is None:
            return None
        option = option_of(choose(options, 1 - _wanted_beside(decision)))
        if option.usd_per_hour is None or option.usd_per_hour > most_usd:
            return None
        was = shown_chance(decision.chosen.probability_met or 0.0)
        is_likelier = shown_chance(option.probability_met or 0.0) > was
        if option.usd_per_hour == most_usd and not (most_usd == self.usd and is_likelier):
            return None
        n_gpus = able[str(option.gpu_profile_id)].n_gpus
        return WayOption(option, way.name.format(n=n_gpus), way.risk)


class UnmeasuredOptions(NamedTuple):
    """Options on GPUs that nobody measured, and what to say of them."""

    options: list[Option]
    notes: list[str]


def options_on_unmeasured_gpus(decision: Decision) -> UnmeasuredOptions:
    """Return options on GPUs that nobody measured, and what to say of them.

    They are weighed separately, so that the answer does not depend on them.
    """
    case = decision.case
    risk = case.question.risk
    chosen_usd = decision.chosen.usd_per_hour
    below_usd = np.inf
    if decision.weighing.sizer is not None and chosen_usd is not None:
        below_usd = chosen_usd
    gpu_profiles = {
        profile_id: gpu_profile
        for profile_id, gpu_profile in case.unmeasured_profiles().items()
        if gpu_profile.usd_per_hour < below_usd
    }
    options = _weigh_like(decision, case.varied({}, gpu_profiles), Cheapest(below_usd))
    if options is None:
        return UnmeasuredOptions([], [])
    likely = [row for row in weighed_rows(options) if row.probability_met >= FAIR]
    frontier = list_frontier(offered_options(likely), risk)
    best = option_of(choose(options, 1 - _wanted_beside(decision)))
    if best.usd_per_hour is None or (chosen_usd is not None and best.usd_per_hour >= chosen_usd):
        return UnmeasuredOptions(frontier, [])
    note = (
        f"{'Cheaper' if decision.chosen.gpu_profile_id else 'Likely'} on a GPU that nobody "
        f"measured: {deployment_words(best)}, with probability "
        f"{chance(best.probability_met or 0.0)}, predicted from other GPUs. Measure it before you "
        "rent it (--probe); --measured-only leaves such GPUs out."
    )
    return UnmeasuredOptions(frontier, [note])


def _weigh_like(decision: Decision, case: Case, cheapest: Cheapest) -> pd.DataFrame | None:
    """Return the options of another case, weighed like a decision's; None: no profile can serve.

    Args:
        decision: its predictor is used, and its way to size a request rate.
        case: the other case.
        cheapest: which of its GPU profiles are drawn, where a request rate is sized.
    """
    if not case.gpu_profiles:
        return None
    try:
        case.excluded  # noqa: B018  raises where none has the memory
    except InputError:
        return None
    forecast = decision.fitted.forecast(case, case.question.slo)
    weighing = weigh_beside(decision.weighing, forecast, cheapest)
    return weighing.options() if weighing is not None else None


def _wanted_beside(decision: Decision) -> float:
    """Return the probability that an option beside the answer has to have.

    It is that of the answer, but at most `SAFE`, unless the question states a risk.
    """
    risk = decision.case.question.risk
    if risk is not None:
        return 1 - risk
    if decision.chosen.gpu_profile_id is None:
        return FAIR
    return min(SAFE, decision.chosen.probability_met or 0.0)

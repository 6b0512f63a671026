"""Other ways to serve the LLM of an answer: precisions, layouts, speculation, and what each costs.

The answer is for the LLM as it is asked about; the person says which of these ways its quality
allows. Each way is one option of `sextant recommend` away. Fewer GPU profiles are simulated for a
way than for an answer, so its probability may differ by a draw or two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.drafting import USUAL_METHOD, drafting_gains
from sextant.answer.option import Option
from sextant.ask.case import Case
from sextant.ask.forecast import Fitted
from sextant.ask.question import PARALLEL, Question
from sextant.base.errors import InputError
from sextant.decide.decision import FAIR, SAFE, choose
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM, kv_precision_of, precision_of
from sextant.pages.words import shown_chance
from sextant.recommend.options import option_of
from sextant.recommend.rate import RateSizer
from sextant.recommend.recommendation import WayOption
from sextant.recommend.weighing import Weighing, weigh_case

_PROFILES_PER_WAY = 3
"""GPU profiles that are simulated for each way."""
_NOT_JUDGED = "its quality is not judged here"
_RISKS = {
    "fp8": f"8-bit weights: {_NOT_JUDGED}, often close",
    "nvfp4": f"4-bit weights: {_NOT_JUDGED}",
    "int4": f"4-bit weights: {_NOT_JUDGED}",
}
_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}


class Place(NamedTuple):
    """A GPU profile at a load of a replica."""

    gpu_profile_id: str
    users: int


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
    if stated.kv_dtype is None and _BITS.get(kv_precision_of(llm), 4) > _BITS["fp8"]:
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
    """Return the way that speculates with so many draft tokens."""
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


def other_ways(
    weighing: Weighing, fitted: Fitted, chosen: Option, operating_point: Place
) -> list[WayOption]:
    """Return the ways to serve that are cheaper than the answer, or likelier where it is unsure.

    Cheapest first. Two ways together only where they are cheaper than the cheapest alone.

    Args:
        weighing: what the answer was weighed by.
        fitted: its predictor.
        chosen: the recommended option.
        operating_point: where drafts are compared.
    """
    case = weighing.case
    search = _WaySearch(weighing, fitted, chosen)
    is_asked = case.question.decision == "utility" and fitted.has_steps
    # A probe is of the LLM as it is asked about.
    if not (search.gpu_profiles and is_asked) or case.question.probe:
        return []

    ways = ways_of(case.stated, case.configured_llm)
    if case.question.speculative is None:
        gains = drafting_gains(
            case, fitted.model, operating_point.gpu_profile_id, operating_point.users
        )
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

    weighing: Weighing
    fitted: Fitted
    chosen: Option

    @property
    def usd(self) -> float:
        """Price of the answer; infinite without one."""
        return self.chosen.usd_per_hour or np.inf

    @property
    def gpu_profiles(self) -> dict[str, GPUProfile]:
        """Candidates of which one replica is cheaper than the answer.

        At the answer's price only what makes an unsure answer likelier is of use.
        """
        is_unsure = (self.chosen.probability_met or 0.0) < SAFE
        return {
            profile_id: gpu_profile
            for profile_id, gpu_profile in self.weighing.case.gpu_profiles.items()
            if gpu_profile.usd_per_hour < self.usd
            or (is_unsure and gpu_profile.usd_per_hour == self.usd)
        }

    def best(self, way: Way, most_usd: float) -> WayOption | None:
        """Return the best option of a way at this price or below; None: it is no better."""
        case = self.weighing.case
        risk = case.question.risk
        able = {
            profile_id: gpu_profile
            for profile_id, gpu_profile in self.gpu_profiles.items()
            if gpu_profile.usd_per_hour <= most_usd and can_run(gpu_profile, way)
        }
        options = weigh_way(
            case.varied(way.changes, able),
            self.fitted,
            self.weighing.sizer,
            most_usd,
            most_drawn=_PROFILES_PER_WAY,
            wanted=_wanted(self.chosen, risk),
        )
        if options is None:
            return None
        option = as_likely(options, self.chosen, risk)
        if option.usd_per_hour is None or option.usd_per_hour > most_usd:
            return None
        was = shown_chance(self.chosen.probability_met or 0.0)
        is_likelier = shown_chance(option.probability_met or 0.0) > was
        if option.usd_per_hour == most_usd and not (most_usd == self.usd and is_likelier):
            return None
        n_gpus = able[str(option.gpu_profile_id)].n_gpus
        return WayOption(option, way.name.format(n=n_gpus), way.risk)


def weigh_way(
    case: Case,
    fitted: Fitted,
    sizer: RateSizer | None,
    most_usd: float,
    *,
    most_drawn: int | None = None,
    wanted: float | None = None,
) -> pd.DataFrame | None:
    """Return the weighed options of a case like the answer's; None where no profile can serve.

    Args:
        case: the other case.
        fitted: the predictor of the answer.
        sizer: what sized the answer's request rate; None: nothing is simulated.
        most_usd: price of the dearest option that is of use.
        most_drawn: GPU profiles that are worth draws; None: all.
        wanted: the probability to find replicas for, by default the question's.
    """
    if not case.gpu_profiles:
        return None
    try:
        case.excluded  # noqa: B018  raises where none has the memory
    except InputError:
        return None
    forecast = fitted.forecast(case, case.question.slo)
    if sizer is None:
        return Weighing(forecast).options()
    weighing = weigh_case(
        forecast,
        model=sizer.model,
        most_usd_per_hour=most_usd,
        most_drawn=most_drawn,
        wanted=wanted,
    )
    return weighing.options()


def as_likely(options: pd.DataFrame, chosen: Option, risk: float | None) -> Option:
    """Return the cheapest option as likely as the answer, or as anybody wants (`choose`)."""
    return option_of(choose(options, 1 - _wanted(chosen, risk)))


def _wanted(chosen: Option, risk: float | None) -> float:
    """Return the probability that another option has to have beside the answer."""
    if risk is not None:
        return 1 - risk
    if chosen.gpu_profile_id is None:
        return FAIR
    return min(SAFE, chosen.probability_met or 0.0)

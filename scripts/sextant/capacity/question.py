"""What `sextant capacity` is asked: a question, the traffic, and how replicas may come and go."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.ask.variation import Variant
from sextant.base.errors import InputError
from sextant.decide.windows import Target
from sextant.facts.llm import LLM
from sextant.facts.startup import Startup, startup_of
from sextant.pages.words import HOUR_S, plural
from sextant.simulate.scaling import ScalingPolicy
from sextant.simulate.simulation import Router
from sextant.workload.requests import ScalableTraffic, SteadyTraffic

RISK = 0.1
N_DRAWS = 1000
MOST_SLOTS = 10_000
"""Slots of a schedule: a week of minutes."""


class Terms(NamedTuple):
    """How replicas may come and go."""

    slot_s: float = HOUR_S
    """Length of a slot of the schedule; the replicas do not change within it."""
    startup: Callable[[LLM], Startup] = startup_of
    """Time from the order of a replica until it takes requests; this time is paid for."""
    least: int = 1
    """Replicas at any time."""


@dataclass(frozen=True)
class CapacityQuestion:
    """A question with the traffic to simulate."""

    question: Question
    """The LLM, the candidates, their prices and the measurements; its SLO has the limits."""
    traffic: ScalableTraffic
    target: Target
    settings: Settings = field(default_factory=Settings)
    terms: Terms = field(default_factory=Terms)
    risk: float = RISK
    """Largest probability that a window is missed."""
    n_draws: int = N_DRAWS
    router: Router = "round_robin"
    split_tokens: int | None = None
    """Longest input of the first of two pools to compare with one."""
    is_disaggregated: bool = False
    """Compare with prefill and decode on separate replicas."""
    policy: ScalingPolicy | None = None
    """How replicas come and go, to compare with replicas that stay."""
    attainment: float | None = None
    """Share of windows that a tuned policy has to meet; None: none is tuned."""
    steady: SteadyTraffic | None = None
    """Traffic that sizes the replicas; `traffic` then only shows them over time. None: `traffic`
    does both."""
    variants: tuple[Variant, ...] = ()
    """Other values of its numbers, each with its own option."""
    notes: tuple[str, ...] = ()
    """What the answer says first, e.g. which lengths are assumed."""

    @property
    def sizing_traffic(self) -> ScalableTraffic:
        """The traffic that sizes the replicas."""
        return self.steady or self.traffic

    def varied(self, variant: Variant) -> "CapacityQuestion":
        """Return the question of a variant; its prices are those of the candidates.

        Raises InputError: it varies lengths, or a limit that is not asked for.
        """
        if variant.has_lengths:
            problem = "the lengths are those of the traffic"
            fix = "leave lengths out here; `sextant recommend` varies them"
            raise InputError(problem, field="--vary", fix=fix)
        slo = variant.slo(self.question.slo)
        return replace(
            self,
            question=replace(self.question, slo=slo),
            traffic=self.traffic.scaled(variant.traffic),
            steady=self.steady and self.steady.scaled(variant.traffic),
            target=replace(self.target, limits=slo.limits),
        )

    @property
    def has_policy(self) -> bool:
        """Whether a policy is asked about, or one is tuned."""
        return self.policy is not None or self.attainment is not None


def check_capacity(capacity_question: CapacityQuestion) -> None:
    """Raise InputError where the draws cannot show the risk, or the traffic is too long."""
    least_draws = math.ceil(1 / capacity_question.risk - 1e-9)
    if 0 < capacity_question.n_draws < least_draws:
        draws = plural(capacity_question.n_draws, "draw")
        problem = f"{draws} cannot show a risk of {capacity_question.risk:g}"
        raise InputError(problem, field="--draws", fix=f"give --draws {least_draws} or more")
    requests = capacity_question.traffic.drawn(0)
    n_slots = requests.duration_s / capacity_question.terms.slot_s
    if n_slots > MOST_SLOTS:
        problem = f"{n_slots:,.0f} slots are too many, {MOST_SLOTS:,} are followed"
        least_s = math.ceil(requests.duration_s / MOST_SLOTS)
        raise InputError(problem, field="--slot", fix=f"give {least_s}s or more")
    needs_all = (
        capacity_question.has_policy
        or capacity_question.split_tokens is not None
        or capacity_question.is_disaggregated
    )
    if needs_all and requests.part is not None:
        problem = f"only {requests.n:,} of {requests.n_whole:,} requests are simulated"
        fix = "give a shorter trace: policies and two pools are followed from request to request"
        raise InputError(
            problem, field="--policy, --tune-policy, --split-tokens, --disaggregated", fix=fix
        )

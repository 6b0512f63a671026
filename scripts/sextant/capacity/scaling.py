"""Autoscaling under the traffic of a capacity answer.

A policy is compared with replicas that stay, a schedule and foresight, and its target is tuned to
the one at which it costs least.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from sextant.capacity.answer import (
    CapacityFindings,
    PolicyCost,
    PolicyTimeline,
    ScalingComparison,
    Schedule,
    WindowCurves,
    WorstMinute,
)
from sextant.capacity.manifests import manifest_of
from sextant.capacity.question import CapacityQuestion
from sextant.capacity.schedule import find_schedule
from sextant.decide.replica_sizing import Sizing
from sextant.decide.windows import (
    WINDOW_S,
    Judged,
    ServingResults,
    Target,
    are_good,
    judge_windows,
)
from sextant.facts.startup import Startup
from sextant.pages.words import HOUR_S, MINUTE_S
from sextant.simulate.scaling import Autoscaler, Reactive, Scaling, ScalingPolicy, Trigger
from sextant.simulate.simulation import on_threads

N_DRAWS = 8
"""Other draws of law and traffic that a policy is followed in."""
_STABILIZATION_S = (120.0, 600.0)
_FACTORS = [2 ** (step / 2) for step in range(-8, 9)]
"""Factors on a policy's targets that are tried."""
_N_WORST = 5
_TARGET_DIGITS = 4
"""Significant digits of a tuned target."""


def compare_policies(
    llm_id: str,
    sizing: Sizing,
    capacity_question: CapacityQuestion,
    startup: Startup,
    findings: CapacityFindings,
) -> ScalingComparison:
    """Return what replicas that stay, a schedule, a policy and foresight cost and attain.

    Args:
        llm_id: the LLM's name.
        sizing: the answer.
        capacity_question: its question, with a policy or an attainment to tune one for.
        startup: how long a replica takes to start.
        findings: the answer's results of replicas that stay, and its schedule.
    """
    requests = capacity_question.traffic.drawn(sizing.day)
    window_terms = capacity_question.terms._replace(
        slot_s=capacity_question.target.window_s or WINDOW_S
    )
    foresight = find_schedule(
        sizing, requests, capacity_question.target, window_terms, startup, has_labels=False
    ).schedule
    follower = _Follower(sizing, capacity_question, startup, foresight.counts[0])
    policies = (
        [("policy", capacity_question.policy)] if capacity_question.policy is not None else []
    )
    tuned_manifest = None
    if capacity_question.attainment is not None:
        tuned = follower.tune(foresight)
        policies.append(("tuned", tuned.policy))
        if tuned.is_enough:
            tuned_manifest = manifest_of(llm_id, tuned.policy)

    schedule = findings.schedule
    n_windows = findings.fixed.n_windows
    costing = _Costing(sizing, n_windows)
    fixed_hours = schedule.fixed_replica_hours
    costs = [
        costing.cost("fixed", fixed_hours, findings.fixed.n_windows_missed),
        costing.cost("schedule", schedule.replica_hours, schedule.n_windows_missed),
    ]
    for name, policy in policies:
        followed, *others = follower.in_draws(policy)
        costs.append(costing.cost(name, followed.replica_hours, followed.judged.n_missed, others))
        worst = followed.worst_minutes(capacity_question.target, policy.most)
        timeline = followed.timeline
    costs.append(costing.cost("foresight", foresight.replica_hours, foresight.n_windows_missed))
    return ScalingComparison(
        policies=costs,
        n_windows=n_windows,
        initial=foresight.counts[0],
        manifest=tuned_manifest,
        asked_attainment=capacity_question.attainment,
        worst=worst,
        timeline=timeline,
        n_gpus=sizing.server.profile.n_gpus,
    )


class _Followed(NamedTuple):
    """A policy in one draw of law and traffic."""

    results: ServingResults
    judged: Judged
    scaling: Scaling

    @property
    def attainment(self) -> float:
        """Share of the windows that meet the SLO."""
        return float(self.judged.is_met.mean())

    @property
    def replica_hours(self) -> float:
        """Of all replicas, from their order to their last answer."""
        return self.scaling.replica_s / HOUR_S

    @property
    def timeline(self) -> PolicyTimeline:
        """Replicas and results over time."""
        return PolicyTimeline(
            self.scaling.time_s.tolist(),
            self.scaling.ordered.tolist(),
            self.scaling.ready.tolist(),
            WindowCurves.of(self.judged),
        )

    def worst_minutes(self, target: Target, most: int) -> list[WorstMinute]:
        """Return the minutes with the most requests beyond a limit, in the order of time.

        `most` is the largest number of replicas that the policy orders.
        """
        minutes = (self.results.arrival_s // MINUTE_S).astype(int)
        n_requests = np.bincount(minutes)
        n_beyond = np.bincount(minutes, ~are_good(self.results, target))
        worst = []
        for minute in sorted(np.argsort(-n_beyond, kind="stable")[:_N_WORST].tolist()):
            if not n_beyond[minute]:
                continue
            replicas = self.scaling.at((minute + 0.5) * MINUTE_S)
            why = "most" if replicas.ordered >= most else "unasked"
            if replicas.ordered > replicas.ready:
                why = "starting"
            worst.append(
                WorstMinute(
                    start_s=minute * MINUTE_S,
                    n_requests=int(n_requests[minute]),
                    n_beyond=int(n_beyond[minute]),
                    ordered=replicas.ordered,
                    ready=replicas.ready,
                    why=why,
                )
            )
        return worst


@dataclass(frozen=True)
class _Costing:
    """Prices ways to add and remove replicas."""

    sizing: Sizing
    n_windows: int

    def cost(
        self,
        policy: str,
        replica_hours: float,
        n_missed: int,
        others: Sequence[_Followed] = (),
    ) -> PolicyCost:
        """Return what a policy costs, with the range over other draws of law and traffic."""
        gpu_profile = self.sizing.server.profile
        hours = [followed.replica_hours for followed in others]
        attained = [followed.attainment for followed in others]
        return PolicyCost(
            policy=policy,
            replica_hours=replica_hours,
            n_windows_missed=n_missed,
            usd=replica_hours * gpu_profile.usd_per_hour,
            gpu_hours=replica_hours * gpu_profile.n_gpus,
            attainment=1 - n_missed / self.n_windows,
            replica_hours_lo=min(hours, default=None),
            replica_hours_hi=max(hours, default=None),
            attainment_lo=min(attained, default=None),
            attainment_hi=max(attained, default=None),
        )


class _Tuned(NamedTuple):
    """A policy whose target was tuned."""

    policy: Reactive
    is_enough: bool
    """Whether it attains what is asked."""


class _Trial(NamedTuple):
    """A policy that was followed while a target is tuned."""

    is_short: bool
    """Whether it attains less than is asked."""
    badness: float
    """The share of windows missed if it is short, else its replica hours."""
    policy: Reactive


@dataclass(frozen=True)
class _Follower:
    """Simulates policies under the traffic of an answer."""

    sizing: Sizing
    asked: CapacityQuestion
    startup: Startup
    initial: int
    """Replicas that a reactive policy starts with: as many as its first window needs."""

    def in_draws(self, policy: ScalingPolicy) -> list[_Followed]:
        """Return the policy in the draw of the answer, then in others."""
        draw = self.sizing.draw
        others = [other for other in range(self.sizing.server.n_draws) if other != draw]
        others = others[:N_DRAWS]
        draws = [draw, *others]
        return on_threads(partial(self.follow, policy), draws, [self.sizing.day, *others])

    def follow(self, policy: ScalingPolicy, draw: int, day: int) -> _Followed:
        """Simulate a policy in one draw of the law and one of the traffic."""
        requests = self.asked.traffic.drawn(day)
        window_s = self.asked.target.window_s
        follow = self.sizing.server.follow
        assert follow is not None
        autoscaler = Autoscaler(policy, self.startup, seed=draw)
        if isinstance(policy, Reactive):
            initial = min(max(policy.least, self.initial), policy.most)
            autoscaler = replace(autoscaler, initial=initial)
        results, scaling = follow(requests, autoscaler, draw, window_s)
        judged = judge_windows(results, self.asked.target, requests.n_windows(window_s))
        return _Followed(results, judged, scaling)

    def tune(self, foresight: Schedule) -> _Tuned:
        """Return the cheapest policy that attains what is asked in the draw of the answer.

        If none does, it is the policy that attains the most. Two policies are varied: the one that
        is asked about, and one that looks at the requests in flight per replica. Varied are the
        fewest replicas, how long a peak is remembered, and the target; the largest target that is
        enough is found by bisection, since a larger target orders fewer replicas.
        """
        in_flight = Trigger("requests_in_flight", self._in_flight(), labels=self._labels())
        bases = [Reactive((in_flight,), 2 * self.sizing.count)]
        if isinstance(self.asked.policy, Reactive):
            bases.append(self.asked.policy)
        trials: list[_Trial] = []
        for base in bases:
            for least in sorted({base.least, min(foresight.counts)}):
                for stabilization_s in _STABILIZATION_S:
                    self._bisect(_remembering(base, least, stabilization_s), trials)
        best = min(trials, key=lambda trial: (trial.is_short, trial.badness))
        return _Tuned(best.policy, not best.is_short)

    def _bisect(self, policy: Reactive, trials: list[_Trial]) -> None:
        """Find the largest factor on a policy's targets that attains what is asked."""

        def is_short(factor: float) -> bool:
            # As it is written: nobody reads more digits of a target.
            triggers = [
                trigger._replace(target=float(f"{factor * trigger.target:.{_TARGET_DIGITS}g}"))
                for trigger in policy.triggers
            ]
            scaled = replace(policy, triggers=tuple(triggers))
            followed = self.follow(scaled, self.sizing.draw, self.sizing.day)
            short = followed.attainment < (self.asked.attainment or 0.0)
            badness = 1 - followed.attainment if short else followed.replica_hours
            trials.append(_Trial(short, badness, scaled))
            return short

        bisect_left(_FACTORS, True, key=is_short)

    def _labels(self) -> tuple[str, ...]:
        """Return the labels of the policy that is asked about, for running and for waiting."""
        triggers = self.asked.policy.triggers if isinstance(self.asked.policy, Reactive) else ()
        labels = next((trigger.labels for trigger in triggers if trigger.labels), ())
        return (labels[0], labels[-1]) if labels else ()

    def _in_flight(self) -> float:
        """Return the requests that each replica of the answer has in the busiest window."""
        sizing = self.sizing
        requests = self.asked.traffic.drawn(sizing.day)
        span_s = self.asked.target.window_s or WINDOW_S
        results = sizing.server.run(requests, sizing.count, sizing.draw, None)
        _, n_busiest = requests.busiest(span_s)
        return float(np.nanmean(results.e2e_s)) * n_busiest / span_s / sizing.count


def _remembering(policy: Reactive, least: int, stabilization_s: float) -> Reactive:
    """Return a policy with these fewest replicas, which remembers a peak for so long.

    Ray Serve has one delay for a peak and for the last replica.
    """
    down = policy.down._replace(stabilization_s=stabilization_s)
    cooldown_s = stabilization_s if policy.is_rays else policy.cooldown_s
    return replace(policy, least=least, down=down, cooldown_s=cooldown_s)

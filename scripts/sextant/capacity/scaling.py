"""Autoscaling under the traffic of a capacity answer: a policy beside replicas that stay, beside a
schedule and foresight; and the target of a policy at which it costs least."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sextant.capacity.capacity import CapacityQuestion, find_schedule, windows_of
from sextant.capacity.policies import manifest
from sextant.decide.simulated_sizing import Sizing
from sextant.decide.windows import WINDOW_S, Judged, ServingResults, are_good, judge_windows
from sextant.facts.startup import Startup
from sextant.pages.words import HOUR_S, MINUTE_S
from sextant.simulate.scaling import Reactive, Scaling, ScalingPolicy, Trigger
from sextant.simulate.simulation import on_threads

N_DRAWS = 8
"""Other draws of law and traffic that a policy is followed in."""
_STABILIZATION_S = (120.0, 600.0)
_FACTORS = [2 ** (place / 2) for place in range(-8, 9)]
_N_WORST = 5
_OVER_TIME = ("time_s", "ordered", "ready")


def compare_policies(
    llm_id: str, sizing: Sizing, asked: CapacityQuestion, startup: Startup, found: dict[str, Any]
) -> dict[str, Any]:
    """Return what replicas that stay, a schedule, a policy and foresight cost and attain.

    Args:
        llm_id: the LLM's name.
        sizing: the answer.
        asked: its question, with a policy or an attainment to tune one for.
        startup: how long a replica takes to start.
        found: the answer's own parts `fixed` and `schedule`.

    Returns:
        `policies`, a row for each; `worst`, the minutes with the most requests beyond a limit under
        the policy (the tuned one, if any), and why; `timeline`, its replicas and its windows;
        `initial`, the replicas that a reactive one starts with; `manifest`, a ScaledObject of the
        tuned one, None where it attains too little.
    """
    demand = asked.traffic.drawn(sizing.draw)
    slot_s = asked.target.window_s or WINDOW_S
    terms = asked.terms._replace(slot_s=slot_s)
    known, _ = find_schedule(sizing, demand, asked.target, terms, startup, has_labels=False)
    schedule, n_windows = found["schedule"], found["fixed"]["n_windows"]
    rows = [
        _row("fixed", schedule["fixed_replica_hours"], found["fixed"]["n_windows_missed"]),
        _row("schedule", schedule["replica_hours"], schedule["n_windows_missed"]),
    ]
    how = partial(_follow, sizing, asked, startup, known["replicas"][0])
    own = [("policy", asked.policy)] if asked.policy is not None else []
    more: dict[str, Any] = {"manifest": None, "asked_attainment": asked.attainment}
    if asked.attainment is not None:
        tuned, is_enough = _tuned(sizing, asked, how, known)
        own.append(("tuned", tuned))
        if is_enough:
            more["manifest"] = manifest(tuned, llm_id)
    for name, policy in own:
        best, *others = on_threads(partial(how, policy), _draws(sizing))
        rows.append(_row(name, best.replica_hours, best.judged.n_missed, others))
        more["worst"] = _worst(best, asked, policy)
        more["timeline"] = {
            **{name: getattr(best.scaling, name).tolist() for name in _OVER_TIME},
            **windows_of(best.judged),
        }
    rows.append(_row("foresight", known["replica_hours"], known["n_windows_missed"]))
    for row in rows:
        row["usd"] = row["replica_hours"] * sizing.server.profile.usd_per_hour
        row["gpu_hours"] = row["replica_hours"] * sizing.server.profile.n_gpus
        row["attainment"] = 1 - row["n_windows_missed"] / n_windows
    more["n_gpus"] = sizing.server.profile.n_gpus
    return {"policies": rows, "n_windows": n_windows, "initial": known["replicas"][0], **more}


def _row(
    name: str, replica_hours: float, n_missed: int, others: Sequence["_Followed"] = ()
) -> dict[str, Any]:
    """Return the facts of a policy, with their range over other draws of law and traffic."""
    row: dict[str, Any] = {
        "policy": name,
        "replica_hours": replica_hours,
        "n_windows_missed": n_missed,
    }
    hours, attained = (
        [getattr(each, of) for each in others] for of in ("replica_hours", "attainment")
    )
    for key, values in (("replica_hours", hours), ("attainment", attained)):
        row[f"{key}_lo"], row[f"{key}_hi"] = min(values, default=None), max(values, default=None)
    return row


def _draws(sizing: Sizing) -> list[int]:
    """Return the draw of the answer, then others."""
    others = [draw for draw in range(sizing.server.n_draws) if draw != sizing.draw]
    return [sizing.draw, *others[:N_DRAWS]]


class _Followed(NamedTuple):
    """A policy in one draw of law and traffic."""

    outcome: ServingResults
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


def _follow(
    sizing: Sizing,
    asked: CapacityQuestion,
    startup: Startup,
    initial: int,
    policy: ScalingPolicy,
    draw: int,
) -> _Followed:
    """Simulate a policy; a reactive one starts with the replicas that its first window needs."""
    demand, window_s = asked.traffic.drawn(draw), asked.target.window_s
    how: dict[str, Any] = {"startup": startup}
    if isinstance(policy, Reactive):
        how["initial"] = min(max(policy.least, initial), policy.most)
    assert sizing.server.follow is not None
    outcome, scaling = sizing.server.follow(demand, policy, draw, window_s, **how)
    judged = judge_windows(outcome, asked.target, demand.n_windows(window_s))
    return _Followed(outcome, judged, scaling)


def _tuned(
    sizing: Sizing,
    asked: CapacityQuestion,
    follow: Callable[[ScalingPolicy, int], _Followed],
    known: dict[str, Any],
) -> tuple[Reactive, bool]:
    """Return the cheapest policy that attains what is asked in the draw of the answer, or the one
    that attains the most; and whether it does.

    Varied are the target (the largest one by bisection: a larger target has fewer replicas), for
    how long a peak is remembered, and the fewest replicas, of the asked policy and of one that
    looks at the requests in flight for each replica.
    """
    own = Trigger("requests_in_flight", _in_flight(sizing, asked))
    bases = [Reactive((own,), 2 * sizing.count)]
    if isinstance(asked.policy, Reactive):
        bases.append(asked.policy)
    found: list[tuple[bool, float, Reactive]] = []

    def misses(policy: Reactive, factor: float) -> bool:
        triggers = [each._replace(target=factor * each.target) for each in policy.triggers]
        own = replace(policy, triggers=tuple(triggers))
        made = follow(own, sizing.draw)
        is_short = made.attainment < (asked.attainment or 0.0)
        found.append((is_short, 1 - made.attainment if is_short else made.replica_hours, own))
        return is_short

    for base in bases:
        for least in sorted({base.least, min(known["replicas"])}):
            for stabilization_s in _STABILIZATION_S:
                down = base.down._replace(stabilization_s=stabilization_s)
                policy = replace(base, least=least, down=down)
                bisect_left(_FACTORS, True, key=partial(misses, policy))
    is_short, _, best = min(found, key=lambda row: row[:2])
    return best, not is_short


def _in_flight(sizing: Sizing, asked: CapacityQuestion) -> float:
    """Return the requests that each replica of the answer has in the busiest window."""
    demand, span_s = asked.traffic.drawn(sizing.draw), asked.target.window_s or WINDOW_S
    outcome = sizing.server.run(demand, sizing.count, sizing.draw, None)
    _, most = demand.busiest(span_s)
    return float(np.nanmean(outcome.e2e_s)) * most / span_s / sizing.count


def _worst(made: _Followed, asked: CapacityQuestion, policy: ScalingPolicy) -> list[dict[str, Any]]:
    """Return the minutes with the most requests beyond a limit, in the order of time."""
    is_bad = ~are_good(made.outcome, asked.target)
    minute = (made.outcome.arrival_s // MINUTE_S).astype(int)
    n_bad, n = np.bincount(minute, is_bad), np.bincount(minute)
    rows = []
    for place in sorted(np.argsort(-n_bad, kind="stable")[:_N_WORST].tolist()):
        if not n_bad[place]:
            continue
        replicas = made.scaling.at((place + 0.5) * MINUTE_S)
        why = "most" if replicas["ordered"] >= policy.most else "unasked"
        why = "starting" if replicas["ordered"] > replicas["ready"] else why
        rows.append(
            {
                "start_s": place * MINUTE_S,
                "n_requests": int(n[place]),
                "n_beyond": int(n_bad[place]),
                **replicas,
                "why": why,
            }
        )
    return rows

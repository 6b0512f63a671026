"""What does not fit together: observations that contradict the law, each other, or the question."""

import math
from collections.abc import Sequence

from sextant.facts.slo import METRICS
from sextant.pages.words import duration_words, number, per_second, percent, plural
from sextant.rightsize.answer import Comparison, LoadComparison
from sextant.rightsize.observations import ObservedPoint, is_behind
from sextant.rightsize.question import RightsizeQuestion

_NEAR = 1.2
"""An observation within a fifth of the predicted median contradicts nothing."""
_FAR = 1.5
"""Times beyond the predicted interval from which on something else may have been observed."""
_UNEXPLAINED = 1.3
"""Ratio of observed to calibrated from which on the law cannot follow the observations."""
_LITTLE = 1.3
"""Ratio of requests in flight, as read, to rate × E2E."""
_SURE = 4.0
"""Standard deviations of the mean of some readings."""
_FEW = 200
_LEAST_CACHED = 0.02


def find_doubts(asked: RightsizeQuestion, loads: Sequence[LoadComparison]) -> list[str]:
    """Return what to check before the answer is used, the gravest first."""
    return [
        *_far_off(asked, loads),
        *_unexplained(loads),
        *_against_littles_law(loads),
        *_other_engines(asked),
        *_behind(asked),
    ]


def _far_off(asked: RightsizeQuestion, loads: Sequence[LoadComparison]) -> list[str]:
    """Return means outside of what the law predicts; far outside, what may be wrong."""
    outside = []
    for load in loads:
        for it in load.comparisons:
            if it.percentile is None and it.observed_ms is not None:
                times = _times_outside(it)
                if times > 1 and _ratio(it.observed_ms, it.uncalibrated.median_ms) > _NEAR:
                    outside.append((times, load, it))
    if not outside:
        return []
    times, load, worst = max(outside, key=lambda entry: entry[0])
    predicted = worst.uncalibrated
    text = (
        f"Observed mean {METRICS[worst.metric]} is {number(worst.observed_ms)} ms at "
        f"{per_second(load.replica_rps)} a replica, where {end_words(predicted.median_ms)} ms "
        f"(90% interval {end_words(predicted.low_ms)} to {end_words(predicted.high_ms)}) is "
        "predicted."
    )
    if times > _FAR:
        name = asked.question.llm_name
        served = f" The servers call it {asked.observed.llm}." if asked.observed.llm else ""
        text += (
            f" That is far outside. Are these the metrics of {name} on "
            f"{asked.deployed.replicas} × {asked.deployed.gpu_profile_id}?{served} Check the LLM, "
            "its precision, --deployed and speculation before you use the answer."
        )
    else:
        text += " The calibrated answer follows the observation."
    return [text]


def end_words(value_ms: float) -> str:
    """Return the upper end of an interval, which is infinite where draws are saturated."""
    return number(value_ms) if math.isfinite(value_ms) else "no end"


def _times_outside(comparison: Comparison) -> float:
    """Return by what factor an observation is outside of the predicted interval; 1: inside."""
    observed_ms = comparison.observed_ms or 0.0
    predicted = comparison.uncalibrated
    if not observed_ms or not math.isfinite(predicted.low_ms):
        return math.inf if observed_ms else 1.0
    return max(observed_ms / predicted.high_ms, predicted.low_ms / observed_ms, 1.0)


def _ratio(one: float, other: float) -> float:
    if not (0 < one < math.inf and 0 < other < math.inf):
        return math.inf
    return max(one / other, other / one)


def _unexplained(loads: Sequence[LoadComparison]) -> list[str]:
    """Return an observation that the calibrated law does not give either."""
    for load in loads:
        for it in load.comparisons:
            if it.observed_ms is None or _times_from_calibrated(it) <= _UNEXPLAINED:
                continue
            name = "mean" if it.percentile is None else f"p{it.percentile} of"
            return [
                f"Calibration does not explain the {name} {METRICS[it.metric]} at "
                f"{per_second(load.replica_rps)} a replica: {number(it.observed_ms)} ms observed, "
                f"{end_words(it.calibrated.median_ms)} ms calibrated. Something slows or speeds "
                "requests that the law does not know, e.g. other settings or uneven load."
            ]
    return []


def _times_from_calibrated(it: Comparison) -> float:
    """Return by what factor an observation is off the calibrated law, both as far as known.

    A percentile lies anywhere in its bucket.
    """
    calibrated = it.calibrated
    if it.percentile is None:
        return _ratio(it.observed_ms or 0.0, calibrated.median_ms)
    low_ms = it.observed_low_ms or 0.0
    high_ms = it.observed_high_ms or math.inf
    return max(low_ms / calibrated.high_ms, calibrated.low_ms / high_ms, 1.0)


def _against_littles_law(loads: Sequence[LoadComparison]) -> list[str]:
    """Return that requests in flight are not rate × E2E, where they were read often enough."""
    apart = [it for it in loads if _is_against_littles_law(it)]
    if not apart:
        return []
    worst = max(apart, key=lambda it: _ratio(it.running or 0.0, it.in_flight or 0.0))
    return [
        f"{number(worst.running)} requests were in flight on average, but rate × E2E is "
        f"{number(worst.in_flight)} (Little's law). Counters and gauges may be of different "
        "servers, the load may change fast, or requests may have failed uncounted."
    ]


def _is_against_littles_law(load: LoadComparison) -> bool:
    """Return whether requests in flight, as read, differ by more than their readings may by chance.

    As many requests are in flight as in a Poisson distribution, roughly.
    """
    running = load.running
    in_flight = load.in_flight
    if running is None or in_flight is None or not load.n_readings:
        return False
    chance = _SURE * math.sqrt(max(in_flight, 1.0) / load.n_readings)
    return _ratio(running, in_flight) > _LITTLE and abs(running - in_flight) > chance


def _other_engines(asked: RightsizeQuestion) -> list[str]:
    """Return that metrics are of another number of engines than are deployed."""
    n_engines = asked.observed.n_engines
    replicas = asked.deployed.replicas
    if n_engines is None or n_engines == replicas:
        return []
    return [
        f"Metrics of {plural(n_engines, 'engine')} were read, but {plural(replicas, 'replica')} "
        f"{'is' if replicas == 1 else 'are'} deployed: if engines are missing, so are their "
        "requests. Read all of them, or correct --deployed."
    ]


def _behind(asked: RightsizeQuestion) -> list[str]:
    """Return that requests waited, so that latencies are those of a queue that grew."""
    slots = asked.observed.slots
    behind = [slot for slot in slots if is_behind(slot)]
    if not behind:
        return []
    worst = max(behind, key=lambda slot: slot.waiting or 0.0)
    return [
        f"In {len(behind)} of {plural(len(slots), 'slot')} the servers were behind: at worst "
        f"{number(worst.waiting)} requests waited and {number(worst.running)} ran. These latencies "
        "are of a queue, so they do not calibrate the law. Requests that gave up are not known."
    ]


def reading_notes(asked: RightsizeQuestion, points: Sequence[ObservedPoint]) -> list[str]:
    """Return what was observed and what was not, and what calibration holds for."""
    observed = asked.observed
    whole = observed.whole()
    notes = [*observed.notes]
    if not points:
        notes.append(
            "No latencies of a steady load were observed: nothing is calibrated. Metrics of the "
            "servers have them."
        )
    elif whole.n_answered < _FEW:
        span = duration_words(whole.duration_s)
        notes.append(
            f"{plural(whole.n_answered, 'request')} in {span} were observed: their mean latencies "
            "may be chance. Observe a longer time."
        )
    total = whole.n_answered + whole.n_failed
    if whole.n_failed:
        share = percent(whole.n_failed / total)
        notes.append(f"{plural(whole.n_failed, 'request')} ({share}) failed and are left out.")
    cached = observed.cached_share
    hit_rate = asked.question.prefix_hit_rate
    if hit_rate and cached is not None and abs(hit_rate - cached) < _LEAST_CACHED:
        notes.append(
            f"The prefix cache saves {percent(hit_rate)} of the input, as it was observed to do; "
            "--prefix-hit-rate says another share."
        )
    return notes

"""What a probe says of the laws of a step: on the GPU profile that was measured, and on others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sextant.ask.case import Case
from sextant.ask.probe import RATE
from sextant.decide.missed_rates import UNMEASURED, RateMeasurements
from sextant.facts.answer_times import rate_of_users
from sextant.facts.slo import SLO, are_alike
from sextant.law.calibration import beyond_law
from sextant.law.means import (
    STEP_TERMS,
    BatchLimits,
    MeanLoad,
    broadcast_laws,
    closed_loop,
)
from sextant.points.frame import LENGTHS, limited
from sextant.simulate.simulation import NAMES, Scheduler

if TYPE_CHECKING:
    from sextant.law.probed_server import ProbeResult

LEAST_DRAWS = 200
"""Draws of the law with which its 90% intervals are known well enough."""
_ALL_MEDIANS = SLO(
    "all", ttft_ms=1, nttft_ms=1, itl_ms=1, tpot_ms=1, e2e_ms=1, percentile=50, users=1
)
"""Limits on all metrics: what follows from a probe's latencies is at the probe's percentile."""


def rate_measurements(case: Case, profile_id: str) -> RateMeasurements:
    """Return what the probe says of rates of requests like the asked ones on a GPU profile.

    Users send the rate of their answers, by Little's law; where E2E is not known, no rate is.
    """
    probe = case.probe
    if probe is None:
        return UNMEASURED
    is_alike = are_alike(probe[LENGTHS].to_numpy(float), case.lengths)
    rows = probe[is_alike & (probe["gpu_profile_id"] == profile_id)]
    latencies_ms = limited(rows, _ALL_MEDIANS)
    answered_rps = rate_of_users(rows["users"], latencies_ms["e2e"])
    rates_rps = rows[RATE].fillna(answered_rps).to_numpy(float)
    is_known = ~np.isnan(rates_rps)
    known_ms = {name: values[is_known] for name, values in latencies_ms.items()}
    return RateMeasurements(rates_rps[is_known], known_ms)


@dataclass(frozen=True, eq=False)
class ProbedLoads:
    """Loads of one GPU profile that were measured, beside the law's draws of them."""

    scheduler: Scheduler
    result: "ProbeResult"
    beyond: np.ndarray
    """How far TTFT and ITL lie beyond the law, in logarithms, the median over the loads, (2,)."""
    seed: int

    def fitted(self, terms: np.ndarray) -> np.ndarray:
        """Return laws, (1 + draws, terms), that give what was measured."""
        from sextant.law.probed_server import fit_laws_to_probe

        return fit_laws_to_probe(terms, self.scheduler, self.result, self.seed)


def probed_loads(
    case: Case, profile_id: str, scheduler: Scheduler, terms: np.ndarray
) -> ProbedLoads | None:
    """Return what was measured on a GPU profile; None: nothing was.

    `terms` are the law's, (1 + draws, terms), the likeliest first.
    """
    probe = case.probe
    if probe is None:
        return None
    probe = probe[probe["gpu_profile_id"] == profile_id]
    if probe.empty:
        return None
    from sextant.law.probed_server import ProbeResult  # few questions have a probe

    column = {name: probe[name].to_numpy(float) for name in probe.select_dtypes("number")}
    inputs = column["input_tokens"]
    outputs = column["output_tokens"].clip(min=2)
    load = MeanLoad(inputs, outputs, case.question.prefix_hit_rate * inputs)
    rates_rps = None if np.isnan(column[RATE]).any() else column[RATE]

    # A rate may saturate the law; the users in flight do not.
    law = broadcast_laws(terms)
    means = closed_loop(law, BatchLimits.of(scheduler), load, column["users"])
    # Where E2E alone was measured both latencies are in the likeliest law's proportion.
    is_whole = np.isnan(column["nttft_ms"]) & np.isnan(column["itl_ms"])
    factor = column["e2e_ms"] / means.e2e_ms[0]
    ttft_ms = np.where(is_whole, factor * means.ttft_ms[0], column["nttft_ms"] * inputs)
    itl_ms = np.where(is_whole, factor * means.itl_ms[0], column["itl_ms"])
    latencies_ms = np.stack([ttft_ms, itl_ms], axis=-1)
    drawn_ms = np.stack([means.ttft_ms[1:], means.itl_ms[1:]], axis=-1)
    beyond = np.median(beyond_law(latencies_ms, drawn_ms), axis=0)
    result = ProbeResult(load, ttft_ms, itl_ms, column["users"], rates_rps)
    return ProbedLoads(scheduler, result, beyond, case.question.seed)


def scales_elsewhere(probed: Sequence[ProbedLoads], n_draws: int, case: Case) -> np.ndarray:
    """Return factors of the terms of laws on GPU profiles that were not measured.

    As `Calibration.corrected` moves latencies there: by a share of what lies beyond the law, which
    is not known. Shape (1 + draws, terms); the likeliest law takes the mean share.
    """
    scales = np.ones((1 + n_draws, len(NAMES)))
    if not probed:
        return scales
    first, later = np.median([loads.beyond for loads in probed], axis=0)
    shares = np.append(0.5, np.random.default_rng(case.question.seed).uniform(0, 1, n_draws))
    for name in STEP_TERMS:
        scales[:, NAMES.index(name)] = np.exp(later * shares)
    scales[:, NAMES.index("request_ms")] = np.exp(first * shares)
    return scales

"""What a probe says of the laws of a step: on the GPU profile that was measured, and on others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from sextant.ask.case import Case
from sextant.ask.probe import RATE
from sextant.base.files import Row, frame_rows
from sextant.decide.latency_surface import ReplicaLaws
from sextant.decide.missed_rates import UNMEASURED, MissedLatency, MissedLoad, RateMeasurements
from sextant.facts.answer_times import (
    answer_ms,
    rate_of_users,
    requests_decoding,
    requests_in_flight,
)
from sextant.facts.slo import METRICS, SLO, are_alike
from sextant.law.calibration import beyond_law, moved_elsewhere
from sextant.law.means import (
    STEP_TERMS,
    BatchLimits,
    MeanLoad,
    broadcast_laws,
    closed_loop,
    open_loop,
)
from sextant.pages.words import number, plural, under_load
from sextant.points.frame import LENGTHS, limited
from sextant.simulate.server import NAMES, Scheduler

if TYPE_CHECKING:
    from sextant.law.probed_server import FittedLaws, ProbeResult

MOST_MISSED = 0.1
"""Share of a measured latency by which a law may miss it, and nothing is said."""
_QUEUED = 0.8
"""Share of the requests of a load that decode at once, below which most others wait."""
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
    rows: pd.DataFrame  #: Of `read_probe`, one per load.
    before: np.ndarray
    """How far TTFT and ITL lie beyond the law, before these loads joined its fit: logarithms, the
    median over the loads, (2,)."""
    left: np.ndarray  #: The same after they did.
    seed: int

    def fitted(self, terms: np.ndarray) -> "FittedLaws":
        """Return laws that give what was measured; `terms` are the law's, (1 + draws, terms)."""
        from sextant.law.probed_server import fit_laws_to_probe

        return fit_laws_to_probe(terms, self.scheduler, self.result, self.seed)

    def missed_by(self, fitted: "FittedLaws") -> tuple[MissedLoad, ...]:
        """Return the loads that the likeliest of these laws does not give back, worst first."""
        result = self.result
        measured_ms = np.stack([result.ttft_ms, result.itl_ms], axis=-1)
        given_ms = np.exp(fitted.missed) * measured_ms
        decode_ms = result.load.later_tokens * result.itl_ms
        decoding = requests_decoding(result.users, result.ttft_ms, decode_ms)
        loads = []
        for load, row in enumerate(frame_rows(self.rows)):
            if missed := _missed_latencies(row, *given_ms[load].tolist()):
                rate_rps = row[RATE]
                users = int(row["users"]) if rate_rps is None else None
                loads.append(MissedLoad(users, rate_rps, float(decoding[load]), missed))
        return tuple(sorted(loads, key=lambda load: -load.factor))


def _missed_latencies(row: Row, ttft_ms: float, itl_ms: float) -> tuple[MissedLatency, ...]:
    """Return the latencies of a row of a probe that a law does not give back.

    Its means are given. E2E counts where one of its parts was not measured.
    """
    e2e_ms = float(answer_ms(ttft_ms, itl_ms, row["output_tokens"]))
    given = {"ttft": ttft_ms, "nttft": ttft_ms / row["input_tokens"], "e2e": e2e_ms}
    given |= {"itl": itl_ms, "tpot": itl_ms}
    stated = [name for name in METRICS if row[f"own_{name}_ms"] is not None]
    whole = [_stated_first(stated, parts) for parts in (("ttft", "nttft"), ("itl", "tpot"))]
    if None in whole and "e2e" in stated:
        whole.append("e2e")
    latencies = [MissedLatency(name, row[f"own_{name}_ms"], given[name]) for name in whole if name]
    return tuple(it for it in latencies if abs(it.error) > MOST_MISSED)


def _stated_first(stated: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first of some metrics that was measured; None: none was."""
    return next((name for name in names if name in stated), None)


def missed_notes(servers: Mapping[str, ReplicaLaws]) -> list[str]:
    """Return what the laws of GPU profiles still miss of a probe, a line for each profile."""
    return [_missed_note(name, laws) for name, laws in servers.items() if laws.missed]


def _missed_note(profile_id: str, laws: ReplicaLaws) -> str:
    worst = laws.missed[0]
    latencies = [
        f"{METRICS[it.metric]} {number(it.given_ms)} ms, measured {number(it.measured_ms)} ms "
        f"({it.error:+.0%})"
        for it in worst.latencies
    ]
    load = under_load(worst.users, worst.request_rate_rps)
    others = ""
    if n_more := len(laws.missed) - 1:
        are = "is" if n_more == 1 else "are"
        others = f"; {plural(n_more, 'more load')} {are} off by over {MOST_MISSED:.0%}"
    return (
        f"No law found gives what was measured on {profile_id}: {load} the closest has "
        f"{' and '.join(latencies)}{others}. {_remedy(worst, laws.scheduler)}"
    )


def _remedy(load: MissedLoad, scheduler: Scheduler) -> str:
    """Return what to give where a measured load is missed."""
    most = scheduler.max_num_seqs
    has_queue = load.users and load.decoding < _QUEUED * min(load.users, most)
    if has_queue:
        return (
            f"Only about {load.decoding:.0f} requests decoded at once there, where the server is "
            f"taken to decode {most:,}: give the --max-num-seqs that it was started with."
        )
    return (
        "Give the settings that the server was started with (--max-num-seqs, "
        "--max-num-batched-tokens), or measure that load again."
    )


def probed_loads(
    case: Case, rows: pd.DataFrame, laws: ReplicaLaws, untold: ReplicaLaws
) -> ProbedLoads:
    """Return what was measured on a GPU profile.

    Args:
        case: with a probe.
        rows: of the probe, of that GPU profile.
        laws: of the replicas there.
        untold: the same before the probe joined the fit.
    """
    from sextant.law.probed_server import ProbeResult  # few questions have a probe

    column = {name: rows[name].to_numpy(float) for name in rows.select_dtypes("number")}
    inputs = column["input_tokens"]
    outputs = column["output_tokens"].clip(min=2)
    load = MeanLoad(inputs, outputs, case.question.prefix_hit_rate * inputs)
    rates_rps = column[RATE]

    limits = BatchLimits.of(laws.scheduler)
    likeliest = broadcast_laws(laws.terms[:1])
    # Where TTFT alone was measured at a rate, the law says how many requests are in flight.
    e2e_ms = open_loop(likeliest, limits, load, rates_rps).e2e_ms[0]
    in_flight = np.fmin(requests_in_flight(rates_rps, e2e_ms), limits.most_decoding(load))
    users = np.where(np.isnan(column["users"]), np.maximum(in_flight, 1.0), column["users"])

    # Where E2E alone was measured both latencies are in the likeliest law's proportion.
    means = closed_loop(likeliest, limits, load, users)
    is_whole = np.isnan(column["nttft_ms"]) & np.isnan(column["itl_ms"])
    factor = column["e2e_ms"] / means.e2e_ms[0]
    ttft_ms = np.where(is_whole, factor * means.ttft_ms[0], column["nttft_ms"] * inputs)
    itl_ms = np.where(is_whole, factor * means.itl_ms[0], column["itl_ms"])
    result = ProbeResult(load, ttft_ms, itl_ms, users, rates_rps)
    before, left = (_beyond(result, limits, it.terms[1:]) for it in (untold, laws))
    return ProbedLoads(laws.scheduler, result, rows, before, left, case.question.seed)


def _beyond(result: "ProbeResult", limits: BatchLimits, draws: np.ndarray) -> np.ndarray:
    """Return how far TTFT and ITL lie beyond draws of the law, (draws, terms).

    Logarithms, the median over the loads, (2,).
    """
    # A rate may saturate the law; the users in flight do not.
    means = closed_loop(broadcast_laws(draws), limits, result.load, result.users)
    measured_ms = np.stack([result.ttft_ms, result.itl_ms], axis=-1)
    drawn_ms = np.stack([means.ttft_ms, means.itl_ms], axis=-1)
    return np.asarray(np.median(beyond_law(measured_ms, drawn_ms), axis=0))


def scales_elsewhere(probed: Sequence[ProbedLoads], n_draws: int, case: Case) -> np.ndarray:
    """Return factors of the terms of laws on GPU profiles that were not measured.

    As `Calibration.corrected` moves latencies there (`moved_elsewhere`). Shape (1 + draws, terms);
    the likeliest law takes the mean share.
    """
    scales = np.ones((1 + n_draws, len(NAMES)))
    if not probed:
        return scales
    before, left = np.median([(loads.before, loads.left) for loads in probed], axis=0)
    shares = np.append(0.5, np.random.default_rng(case.question.seed).uniform(0, 1, n_draws))
    of_requests, of_steps = (
        np.exp(moved_elsewhere(*beyond, shares)) for beyond in zip(before, left, strict=True)
    )
    for name in STEP_TERMS:
        scales[:, NAMES.index(name)] = of_steps
    scales[:, NAMES.index("request_ms")] = of_requests
    return scales

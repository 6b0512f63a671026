"""What requests at a steady rate get from replicas, in each draw of the law."""

from typing import NamedTuple

import numpy as np

from sextant.decide.asked_limits import asked_of
from sextant.decide.latency_surface import LEAST_DECODING, BorneRates, Loads, SteadyLoad
from sextant.facts.answer_times import requests_in_flight
from sextant.law.means import open_loop
from sextant.simulate.server import StepLaw


class DrawnLatencies(NamedTuple):
    """What requests at a steady rate get from a replica, by draw."""

    limited_ms: dict[str, np.ndarray]
    """Each limit's latency at its percentile, by metric, (draws,); infinite above saturation."""
    in_flight: np.ndarray
    """Mean number of requests at the replica, (draws,); infinite above saturation."""


def latencies_at(borne: BorneRates, rate_rps: float, replicas: int) -> DrawnLatencies:
    """Return the latencies of requests at this rate of all, shared by replicas in turn."""
    replica = borne.replica
    request = borne.surface.request
    load = SteadyLoad(rate_rps, borne.alpha, request)
    replica_rps = np.array([[rate_rps / replicas]])
    cv2 = load.cv2(replica_rps)
    law = StepLaw(*replica.terms.T[:, :, None])
    requests = request.load(cv2)
    limits = request.limits(replica.scheduler)
    decoding = open_loop(law, limits, requests, replica_rps).decoding

    is_stable = np.isfinite(decoding[:, 0])
    stable = replica.of_draws(is_stable)
    loads = Loads.of(stable, np.maximum(decoding[is_stable], LEAST_DECODING), request, cv2)
    asked = asked_of(borne.target)
    ratios = np.exp(borne.surface.fit_for(asked).log_ratios(asked, loads)[:, 0])
    limited_ms = {}
    for number, (name, limit) in enumerate(borne.target.limits.items()):
        limited_ms[name] = np.full(len(replica.terms), np.inf)
        limited_ms[name][is_stable] = ratios[:, number] * limit.limit_ms
    in_flight = np.full(len(replica.terms), np.inf)
    in_flight[is_stable] = requests_in_flight(rate_rps / replicas, loads.means.e2e_ms[:, 0])
    return DrawnLatencies(limited_ms, in_flight)

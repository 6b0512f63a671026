"""GPU profiles whose laws of a step are made up: what holds of any sizing can be seen on them."""

from dataclasses import replace

import numpy as np

from sextant.decide.latency_surface import LatencySurface, ReplicaLaws
from sextant.decide.replica_sizing import Sizing, size_profiles
from sextant.decide.replicas import SimulatedReplica, simulated_replica
from sextant.decide.windows import Target
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.slo import Limit
from sextant.simulate.server import NAMES, Scheduler, StepLaw
from sextant.workload.lengths import Length, RequestLengths, length_sampler
from sextant.workload.requests import SteadyTraffic

GPU_OF = GPU("g", "gpu", "a", 80.0, 3000.0, 900.0, 80.0, "invented")
SCHEDULER = Scheduler(200_000, max_num_seqs=64)
LENGTHS = RequestLengths(Length(900.0, 2500.0), Length(80.0, 240.0))
LAW = StepLaw(
    floor_ms=3.0,
    dense_ms=5.0,
    sequence_ms=0.05,
    kv_token_ms=1e-4,
    prefill_token_ms=0.05,
    request_ms=4.0,
)
PROMPT_TERMS = [NAMES.index(name) for name in ("prefill_token_ms", "request_ms")]


def made_up_laws(seed: int, n_draws: int, spread: float, slower: float = 1.0) -> ReplicaLaws:
    """Return draws of laws whose steps and prompts take more or less time, each by a factor."""
    rng = np.random.default_rng(seed)
    of_all, of_prompts = np.exp(spread * rng.standard_normal((2, n_draws)) * [[1.0], [0.5]])
    terms = slower * LAW.array() * np.append(1.0, of_all)[:, None]
    terms[1:, PROMPT_TERMS] *= of_prompts[:, None]
    return ReplicaLaws(SCHEDULER, terms)


def made_up_server(name: str, usd_per_hour: float, laws: ReplicaLaws) -> SimulatedReplica:
    """Return a replica with these laws on a GPU profile of its own."""
    return simulated_replica(GPUProfile(name, GPU_OF, 1, usd_per_hour), laws)


def made_up_traffic(rate_rps: float, seed: int = 0) -> SteadyTraffic:
    """Return requests of many lengths that arrive at random."""
    return SteadyTraffic("lengths", length_sampler(LENGTHS), rate_rps, 1.0, seed)


def target_of(**limits_ms: float) -> Target:
    """Return a target of 95th percentiles over the whole time."""
    limits = {name: Limit(limit_ms, 95) for name, limit_ms in limits_ms.items()}
    return Target(limits, window_s=None)


def surface_of(
    servers: dict[str, SimulatedReplica], traffic: SteadyTraffic | None = None
) -> LatencySurface:
    """Return the surface of these servers' laws, for requests at any rate."""
    laws = {name: server.laws for name, server in servers.items()}
    return LatencySurface(laws, replace(traffic or made_up_traffic(1.0), rate_rps=1.0, _streams={}))


def sized_steadily(
    servers: dict[str, SimulatedReplica],
    rate_rps: float,
    target: Target,
    surface: LatencySurface,
    probability: float = 0.9,
) -> dict[str, Sizing]:
    """Return what these servers need of steady traffic."""
    return size_profiles(servers, made_up_traffic(rate_rps), target, probability, surface)

"""Prefill and decode on separate replicas: how many of each some traffic needs.

Each pool is sized by simulation as replicas that do both are. The first pool has to keep most of
the limit on the first token. The second has to keep the limits on later tokens and the rest of that
limit, as a request may wait for memory there. Both are of one type of GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from sextant.answer.option import Option
from sextant.ask.case import Case
from sextant.base.errors import InputError
from sextant.decide.latency_surface import LatencySurface, ReplicaLaws
from sextant.decide.missed_rates import UNMEASURED
from sextant.decide.replica_sizing import Sizing, enough_replicas, size_profiles
from sextant.decide.replicas import Replicas, SimulatedReplica, serving_results
from sextant.decide.windows import ServingResults, Target
from sextant.facts.engine import handover_ms
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.nodes import NETWORK_GB_S
from sextant.facts.slo import Limit
from sextant.pages.words import chance, shown_chance, usd_number, usd_words
from sextant.simulate.pools import Handover, ReplicaPool, decoded, prefilled
from sextant.workload.requests import RequestStream, Traffic

_FIRST_TOKEN = ("ttft", "nttft")
_LATER_TOKENS = ("itl", "tpot")
_ADMISSION_SHARE = 0.2
"""Share of the limit on the first token that the second pool may take, its first step included."""
_HANDOVER_SD = 0.5
"""Standard deviation of the logarithm of what an engine takes to hand a request over."""


@dataclass(frozen=True)
class PoolSize:
    """Replicas of one pool."""

    gpu_profile_id: str
    replicas: int


@dataclass(frozen=True)
class PoolsOption:
    """Two pools that meet a target together."""

    prefill: PoolSize
    decode: PoolSize
    usd_per_hour: float
    """Of both."""
    probability_met: float | None
    """That both are enough at once; None of one draw."""
    handover_ms: float
    """Of a request of mean length."""

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return asdict(self)


def size_pools(
    case: Case,
    laws_of: Callable[[Case], Mapping[str, ReplicaLaws]],
    traffic: Traffic,
    target: Target,
    confidence: float,
    surface: LatencySurface,
) -> PoolsOption | None:
    """Return the cheapest two pools that meet a target with this probability, or None.

    Args:
        case: the LLM, and how it is served.
        laws_of: returns the laws of a step of a case, by GPU profile.
        traffic: what arrives.
        target: one limit on the first token, one on later ones.
        confidence: the probability.
        surface: latencies of these requests on replicas that do both.

    Raises:
        InputError: the target lacks one of the two limits, or has another one; or turns wait for
            answers.
    """
    limits = _split_limits(target)
    if traffic.drawn(0).turns is not None:
        problem = "pools apart do not follow turns that wait for answers"
        raise InputError(problem, field="--disaggregated, --sessions", fix="leave out one")

    # Servers that only compute prompts draft nothing.
    laws = {"prefill": laws_of(case.without_speculation()), "decode": laws_of(case)}
    handovers = {
        profile_id: handover(case.llm, case.engine, case.gpu_profiles[profile_id])
        for profile_id in laws["decode"]
    }
    sizings = {}
    for pool, laws_by_profile in laws.items():
        servers = {
            profile_id: replace(
                _pool_server(case, profile_id, replica_laws, pool, handovers[profile_id]),
                guide=target,
            )
            for profile_id, replica_laws in laws_by_profile.items()
        }
        pool_target = replace(target, limits=limits[pool])
        sizings[pool] = size_profiles(servers, traffic, pool_target, confidence, surface)

    options = []
    pairs = product(sizings["prefill"].items(), sizings["decode"].items())
    for (prefill_id, prefill), (decode_id, decode) in pairs:
        gpu_profiles = [case.gpu_profiles[profile_id] for profile_id in (prefill_id, decode_id)]
        if gpu_profiles[0].gpu.gpu_id == gpu_profiles[1].gpu.gpu_id:
            handover_s = handovers[prefill_id].after_s(case.lengths[0, :1])[0]
            option = _cheapest_pair(prefill, decode, confidence, 1e3 * float(handover_s))
            options += [option] if option is not None else []
    return min(
        options,
        key=lambda option: (option.usd_per_hour, -(option.probability_met or 1)),
        default=None,
    )


def _split_limits(target: Target) -> dict[str, dict[str, Limit]]:
    """Return the limits of each pool. Raises InputError: one is missing, or there is another."""
    first, later = (
        {name: target.limits[name] for name in names if name in target.limits}
        for names in (_FIRST_TOKEN, _LATER_TOKENS)
    )
    if not (first and later) or len(first) + len(later) < len(target.limits):
        problem = "pools are sized by a limit on the first token and one on those after it"
        fix = "give one of --ttft-ms, --nttft-ms and one of --itl-ms, --tpot-ms, and no other"
        raise InputError(problem, field="--disaggregated", fix=fix)
    before, after = (
        {name: limit._replace(limit_ms=share * limit.limit_ms) for name, limit in first.items()}
        for share in (1 - _ADMISSION_SHARE, _ADMISSION_SHARE)
    )
    return {"prefill": before, "decode": {**after, **later}}


def handover(llm: LLM, engine: str, *gpu_profiles: GPUProfile) -> Handover:
    """Return how long a request of an LLM is between pools on these GPU profiles."""
    n_gpus = min(gpu_profile.n_gpus for gpu_profile in gpu_profiles)
    bytes_per_ms = NETWORK_GB_S * n_gpus * 1e6
    return Handover(handover_ms(engine), llm.kv_bytes_per_token / bytes_per_ms)


def _pool_server(
    case: Case, profile_id: str, laws: ReplicaLaws, pool: str, between: Handover
) -> SimulatedReplica:
    """Return a replica of one pool, each draw with its own law and time between the pools."""
    question = case.question
    deviations = np.random.default_rng(question.seed).standard_normal(len(laws.terms))
    deviations[0] = 0.0  # the likeliest

    def run(
        requests: RequestStream, replicas: Replicas, draw: int, window_s: float | None
    ) -> ServingResults:
        assert isinstance(replicas, int)
        if requests.gaps is not None:
            requests = requests.for_one_replica(replicas)
            replicas = 1
        replica_pool = ReplicaPool(laws.scheduler, laws.law(draw), replicas)
        if pool == "decode":
            simulation = decoded(requests, replica_pool, window_s or np.inf)
        else:
            factor = float(np.exp(_HANDOVER_SD * deviations[draw]))
            drawn_handover = between._replace(fixed_ms=factor * between.fixed_ms)
            cached = requests.with_common_prefix(question.prefix_hit_rate)
            simulation = prefilled(cached, replica_pool, drawn_handover)
        return serving_results(requests, [(slice(None), simulation)], window_s)

    # What was measured is a replica that does both.
    return SimulatedReplica(case.gpu_profiles[profile_id], replace(laws, measured=UNMEASURED), run)


def _cheapest_pair(
    prefill: Sizing, decode: Sizing, confidence: float, between_ms: float
) -> PoolsOption | None:
    """Return the cheapest numbers of replicas that are enough at once; None: there are none."""
    if not (
        len(prefill.needs) and len(decode.needs)
    ):  # no number of replicas is enough for one of them
        return None
    profiles = [sizing.server.profile for sizing in (prefill, decode)]
    has_draws = prefill.server.n_draws > 0
    best = None
    for n_prefill in np.unique(prefill.needs[np.isfinite(prefill.needs)]):
        # The fewest for decode, of those draws for which the first pool is enough.
        needs = np.where(prefill.needs <= n_prefill, decode.needs, np.inf)
        n_decode = enough_replicas(needs, confidence)
        if n_decode is None:
            continue
        usd = n_prefill * profiles[0].usd_per_hour + n_decode * profiles[1].usd_per_hour
        if best is None or usd < best.usd_per_hour:
            best = PoolsOption(
                PoolSize(profiles[0].gpu_profile_id, int(n_prefill)),
                PoolSize(profiles[1].gpu_profile_id, n_decode),
                usd,
                float((needs <= n_decode).mean()) if has_draws else None,
                between_ms,
            )
    return best


def pools_pay(pools: PoolsOption | None, chosen: Option) -> bool:
    """Return whether prefill and decode apart are cheaper, or as cheap and likelier."""
    if pools is None or chosen.usd_per_hour is None:
        return False
    apart = (pools.usd_per_hour, -shown_chance(pools.probability_met or 1))
    return apart < (chosen.usd_per_hour, -shown_chance(chosen.probability_met or 1))


def pools_note(pools: PoolsOption | None, chosen: Option) -> str:
    """Return whether prefill and decode apart pay, in a sentence."""
    if pools is None:
        return "Prefill and decode apart: no numbers of replicas are likely enough."
    prefill, decode = (
        f"{pool.replicas} × {pool.gpu_profile_id}" for pool in (pools.prefill, pools.decode)
    )
    usd = chosen.usd_per_hour
    together = chosen.probability_met
    apart = pools.probability_met
    text = f"Prefill and decode apart: {prefill} for prefill and {decode} for decode cost "
    text += usd_words(pools.usd_per_hour)
    text += "" if apart is None else f", probability {chance(apart)}"
    if usd is None:
        return f"{text}, where no replicas that do both are likely enough."
    likely = "" if together is None else f", {chance(together)}"
    pays = "pays" if pools_pay(pools, chosen) else "does not pay"
    return f"{text}; replicas that do both {usd_number(usd)}{likely}: that {pays}."

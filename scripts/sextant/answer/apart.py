"""Prefill and decode on replicas of their own: how many of each some traffic needs.

Each pool is sized by simulation as replicas that do both are: the first by most of the limit on the
first token, the second by those on the tokens after it and by the rest of that limit, as a request
may wait for memory there. Both are of one type of GPU.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np

from sextant.ask.candidates import Subject
from sextant.ask.laws import ServerLaws
from sextant.base.errors import InputError
from sextant.base.files import Row
from sextant.decide.simulated_sizing import (
    Replicas,
    SimulatedReplica,
    Sizing,
    serving_results,
    size_profiles,
)
from sextant.decide.sizing import probability_of
from sextant.decide.windows import ServingResults, Target
from sextant.facts.engine import handover_ms
from sextant.facts.gpu import NETWORK_GB_S, GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.words import chance, shown_chance
from sextant.simulate.pools import Handover, ReplicaPool, decoded, prefilled
from sextant.workload.requests import RequestStream, Traffic

_FIRST, _LATER = ("ttft", "nttft"), ("itl", "tpot")
_ADMISSION = 0.2
"""Share of the limit on the first token that the second pool may take, its first step included."""
_HANDOVER_SD = 0.5  # Of the logarithm of what an engine takes to hand a request over.


def size_apart(
    subject: Subject,
    laws_of: Callable[[Subject], dict[str, ServerLaws]],
    traffic: Traffic,
    target: Target,
    confidence: float,
) -> Row | None:
    """Return the cheapest two pools that meet a target with this probability, or None. The row has
    `prefill` and `decode` (each `gpu_profile_id`, `replicas`), `usd_per_hour`, `probability_met`
    and `handover_ms` of a request of mean length. Raises InputError: the target lacks a limit on
    the first token or on later ones, or has another one; or turns wait for answers."""
    first, later = (
        {n: target.limits[n] for n in names if n in target.limits} for names in (_FIRST, _LATER)
    )
    if not (first and later) or len(first) + len(later) < len(target.limits):
        problem = "pools are sized by a limit on the first token and one on those after it"
        fix = "give one of --ttft-ms, --nttft-ms and one of --itl-ms, --tpot-ms, and no other"
        raise InputError(problem, field="--disaggregated", fix=fix)
    if traffic.drawn(0).turns is not None:
        problem = "pools apart do not follow turns that wait for answers"
        raise InputError(problem, field="--disaggregated, --sessions", fix="leave out one")
    # Who only computes prompts drafts nothing.
    laws = {"prefill": laws_of(subject.undrafted()), "decode": laws_of(subject)}
    between = {
        name: handover(subject.llm, subject.engine, subject.profiles[name])
        for name in laws["decode"]
    }
    found = {}
    before, after = (
        {name: limit._replace(limit_ms=share * limit.limit_ms) for name, limit in first.items()}
        for share in (1 - _ADMISSION, _ADMISSION)
    )
    for pool, limits in (("prefill", before), ("decode", {**after, **later})):
        servers = {
            name: _server(subject, name, each, pool, between[name])
            for name, each in laws[pool].items()
        }
        own = replace(target, limits=limits)
        found[pool] = size_profiles(servers, traffic, own, confidence, has_rate=False)
    profiles, tokens, rows = subject.profiles, subject.lengths[0, :1], list[Row]()
    for (name, prefill), (other, decode) in product(*(each.items() for each in found.values())):
        if profiles[name].gpu.gpu_id == profiles[other].gpu.gpu_id:
            prices = [profiles[each].usd_per_hour for each in (name, other)]
            if (best := _cheapest(prefill, decode, prices, confidence)) is not None:
                counts, usd, probability = best
                rows.append(
                    {
                        "prefill": {"gpu_profile_id": name, "replicas": counts[0]},
                        "decode": {"gpu_profile_id": other, "replicas": counts[1]},
                        "usd_per_hour": usd,
                        "probability_met": probability,
                        "handover_ms": 1e3 * float(between[name].after_s(tokens)[0]),
                    }
                )
    return min(
        rows, key=lambda row: (row["usd_per_hour"], -(row["probability_met"] or 1)), default=None
    )


def handover(llm: LLM, engine: str, *profiles: GPUProfile) -> Handover:
    """Return how long a request of an LLM is between pools on these GPU profiles."""
    bytes_per_ms = NETWORK_GB_S * min(each.n_gpus for each in profiles) * 1e6
    return Handover(handover_ms(engine), llm.kv_bytes_per_token / bytes_per_ms)


def _server(
    subject: Subject, profile_id: str, laws: ServerLaws, pool: str, between: Handover
) -> SimulatedReplica:
    """Return a replica of one pool, each draw with its own law and time between the pools."""
    question = subject.question
    units = np.random.default_rng(question.seed).standard_normal(len(laws.laws))
    units[0] = 0.0  # the likeliest

    def run(
        demand: RequestStream, replicas: Replicas, draw: int, window_s: float | None
    ) -> ServingResults:
        assert isinstance(replicas, int)
        if demand.gaps is not None:
            demand, replicas = demand.for_one_replica(replicas), 1
        of = ReplicaPool(laws.schedulers[draw], laws.laws[draw], replicas)
        if pool == "decode":
            made = decoded(demand, of, window_s or np.inf)
        else:
            requests = demand.with_common_prefix(question.prefix_hit_rate)
            factor = float(np.exp(_HANDOVER_SD * units[draw]))
            made = prefilled(requests, of, between._replace(fixed_ms=factor * between.fixed_ms))
        return serving_results(demand, [(slice(None), made)], window_s)

    return SimulatedReplica(subject.profiles[profile_id], run, len(laws.laws))


def _cheapest(
    prefill: Sizing, decode: Sizing, prices: list[float], confidence: float
) -> tuple[tuple[int, int], float, float | None] | None:
    """Return replicas of both, their price and the probability that both are enough at once, None
    of one draw."""
    if not (prefill.needs and decode.needs):  # no number of replicas is enough for one of them
        return None
    needs = np.array([prefill.needs, decode.needs])
    best = None
    for n_first, n_second in {
        (a, b) for a in needs[0] for b in needs[1] if np.isfinite(a) and np.isfinite(b)
    }:
        n_met = int(((needs[0] <= n_first) & (needs[1] <= n_second)).sum())
        probability = float(probability_of(n_met, needs.shape[1])) if needs.shape[1] > 1 else None
        is_enough = n_met > 0 if probability is None else probability >= confidence - 1e-9
        usd = n_first * prices[0] + n_second * prices[1]
        if is_enough and (best is None or usd < best[1]):
            best = (int(n_first), int(n_second)), usd, probability
    return best


def apart_note(row: Row | None, chosen: Row) -> str:
    """Return whether prefill and decode apart pay, in a sentence."""
    if row is None:
        return "Prefill and decode apart: no numbers of replicas are likely enough."
    parts = [
        f"{row[pool]['replicas']} × {row[pool]['gpu_profile_id']}" for pool in ("prefill", "decode")
    ]
    usd, was, own = chosen["usd_per_hour"], chosen["probability_met"], row["probability_met"]
    likely = ["" if each is None else chance(each) for each in (own, was)]
    text = f"Prefill and decode apart: {parts[0]} for prefill and {parts[1]} for decode cost "
    text += f"{row['usd_per_hour']:.2f} USD/h{likely[0] and f', probability {likely[0]}'}"
    if usd is None:
        return f"{text}, where no replicas that do both are likely enough."
    order = (row["usd_per_hour"], -shown_chance(own or 1)), (usd, -shown_chance(was or 1))
    pays = "pays" if order[0] < order[1] else "does not pay"
    return f"{text}; replicas that do both {usd:.2f}{likely[1] and f', {likely[1]}'}: that {pays}."

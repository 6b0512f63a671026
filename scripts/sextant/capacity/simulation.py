"""The answer of `sextant simulate`: latencies of one deployment under given traffic."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sextant.answer.answer import source_line
from sextant.answer.apart import handover
from sextant.ask.laws import Settings, find_laws
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.base.files import jsonable
from sextant.facts.llm import LLM
from sextant.facts.startup import Startup, startup_of
from sextant.law.means import BatchLimits, MeanLoad, saturation_rps
from sextant.pages.blocks import Block, Document, Headline, Note, Section, Table
from sextant.pages.words import HOUR_S, MINUTE_S, duration_words, number, percent, plural
from sextant.points.metrics import SHOWN, STATISTICS
from sextant.simulate.pools import ReplicaPool, simulate_apart, simulate_users_apart
from sextant.simulate.scaling import Scaling, ScalingPolicy, simulate_scaled
from sextant.simulate.simulation import (
    OK,
    Router,
    Scheduler,
    Simulation,
    StepLaw,
    TooFewRequests,
    on_threads,
    simulate,
    simulate_closed,
    summarise,
    summary_intervals,
)
from sextant.workload.requests import RequestStream

_MOST_REQUESTS = 10_000_000
_OF_A_USER = 10  # Requests of each user where prefill and decode are apart.
_RATES = {
    "throughput_tok_s": ("output tokens a second", number),
    "request_rate_rps": ("requests a second", number),
    "goodput_rps": ("goodput, requests a second", number),
    "failed_fraction": ("failed", percent),
    "utilisation": ("engines busy", percent),
    "kv_used_fraction": ("KV cache in use", percent),
    "cached_fraction": ("input that hit the prefix cache", percent),
    "evicted_blocks": ("blocks evicted from the prefix cache", number),
    "preemptions": ("preemptions", number),
}


@dataclass(frozen=True)
class Sent:
    """Requests: they arrive whatever the servers do, or users wait for their last answer."""

    name: str
    requests: Callable[[int], RequestStream]  #: Draws so many requests; of arrivals, all.
    duration_s: float
    users: int | None = None
    """Who each send a request when their last one is answered; None: requests arrive."""
    notes: tuple[str, ...] = ()  #: Warnings of the answer about them.

    def run(
        self, scheduler: Scheduler, law: StepLaw, replicas: int, router: Router, warmup_s: float
    ) -> Simulation:
        """Simulate them; users stay on their replicas, and send as many requests as they can."""
        how: dict[str, Any] = {"n_replicas": replicas, "warmup_s": warmup_s}
        if self.users is None:
            return simulate(self.requests(0), scheduler, law, router=router, **how)
        n, how["duration_s"] = 64 * self.users, self.duration_s
        while True:
            try:
                return simulate_closed(self.users, self.requests(n), scheduler, law, **how)
            except TooFewRequests:
                if n > _MOST_REQUESTS:
                    problem = f"{self.users} users send more than {_MOST_REQUESTS:,} requests"
                    fix = "give a shorter --duration, or fewer --users"
                    raise InputError(problem, field="--duration", fix=fix) from None
            n *= 4


def simulate_llm(
    question: Question,
    load: Sent,
    settings: Settings,
    *,
    replicas: int = 1,
    router: Router = "round_robin",
    warmup_s: float = 0.0,
    n_draws: int = 100,
    limits_ms: dict[str, float] | None = None,
    decode_replicas: int | None = None,
    policy: ScalingPolicy | None = None,
    startup: Callable[[LLM], Startup] = startup_of,
) -> dict[str, Any]:
    """Return latencies, rates and use of a deployment at the most likely law of a step.

    Args:
        question: the LLM, the measurements, the lengths of the requests, on one GPU profile; or on
            that of prefill, then that of decode.
        load: what is sent.
        settings: of each replica.
        replicas: behind a router.
        router: sends each request to a replica.
        warmup_s: requests that arrive before are simulated and not counted.
        n_draws: draws of the law that the 90% `intervals` are made of; 0 for none.
        limits_ms: limits of goodput, as in `summarise`.
        decode_replicas: those that decode, while `replicas` compute the prompts; None: all do both.
        policy: orders and removes replicas, of which there are `replicas` at the start.
        startup: how long they take to start.

    Returns:
        The numbers of `summarise`, `intervals` of each of them (None without draws), `saturation`
        (the rate that arrives and the one that the replicas can serve; None of users), `by_minute`
        (with a policy), and the question.

    Raises:
        InputError: an option is wrong, the LLM does not fit, or every request is refused.
    """
    gpu_profile_id, decode_profile_id = (*question.gpu_profile_ids, None)[:2]
    offer = find_laws(question, settings, n_draws, need_prices=False)
    for name in filter(None, (gpu_profile_id, decode_profile_id)):
        if name not in offer.laws:
            problem, fix = f"{name}: {offer.excluded[name]}", "give a larger one"
            raise InputError(problem, field="--gpu-profile, --decode-gpu-profile", fix=fix)
    laws, schedulers = offer.laws[str(gpu_profile_id)]
    profiles = [offer.asked.profiles[name] for name in question.gpu_profile_ids]
    if len({each.gpu.gpu_id for each in profiles}) > 1:
        problem, fix = "the pools have different GPUs", "give GPU profiles of one type of GPU"
        raise InputError(problem, field="--decode-gpu-profile", fix=fix)

    scalings: list[Scaling] = []
    started = startup(offer.subject.llm)

    def run(draw: int) -> Simulation:
        if policy is not None:
            made, scaling = simulate_scaled(
                load.requests(0),
                schedulers[draw],
                laws[draw],
                policy,
                duration_s=load.duration_s,
                startup=started,
                initial=replicas,
                router=router,
                seed=question.seed + draw,
            )
            scalings.append(scaling)
            return made
        if decode_profile_id is None or decode_replicas is None:
            return load.run(schedulers[draw], laws[draw], replicas, router, warmup_s)
        second = offer.laws[decode_profile_id]
        decode = ReplicaPool(second.schedulers[draw], second.laws[draw], decode_replicas)
        prefill = ReplicaPool(schedulers[draw], laws[draw], replicas)
        apart = prefill, decode, handover(offer.subject.llm, offer.subject.engine, *profiles)
        if load.users is None:
            return simulate_apart(load.requests(0), *apart, warmup_s)
        sent = load.requests(_OF_A_USER * load.users)
        return simulate_users_apart(load.users, sent, *apart)

    def one(draw: int) -> dict[str, Any]:
        return summarise(run(draw), limits_ms)

    best = run(0)
    notes = _notes(best, schedulers[0])
    numbers = summarise(best, limits_ms)
    if numbers["failed_fraction"] == 1:
        notes.append("Every request is refused or times out: there are no latencies.")
    saturation = None
    notes += load.notes
    if decode_replicas is not None:
        notes.append("How busy engines are and what the KV cache holds is that of the decode pool.")
        late_s = best.end_s - load.duration_s
        if load.users is None and late_s > max(
            0.1 * load.duration_s, 3 * float(np.nanmin(best.e2e_s))
        ):
            text = (
                "Arrivals exceed what the pools serve: the last answer ends {} after the last one "
            )
            notes.insert(0, text.format(duration_words(round(late_s))) + "arrived.")
    if load.users is None and decode_replicas is None and policy is None:
        saturation = _saturation(best, schedulers[0], laws[0], load.duration_s)
        if saturation["is_exceeded"]:
            offered, served = (number(saturation[name]) for name in ("offered_rps", "served_rps"))
            text = "Arrivals exceed what the replicas serve: {} requests/s arrive, about {} can be "
            text += "served. Waits grow for as long as requests arrive."
            notes.insert(0, text.format(offered, served))
    drawn = on_threads(one, range(1, len(laws)))
    facts = {
        "llm_id": offer.asked.llm_id,
        "gpu_profile_id": gpu_profile_id,
        "replicas": replicas,
        "decode_gpu_profile_id": decode_profile_id,
        "decode_replicas": decode_replicas,
        "router": router,
        "load": {
            "name": load.name,
            "users": load.users,
            "n_requests": len(best.status),
            "duration_s": load.duration_s,
            "warmup_s": warmup_s,
            "mean_input_tokens": float(best.input_tokens.mean()),
            "mean_output_tokens": float(best.output_tokens.mean()),
        },
        "saturation": saturation,
        "replica_hours": scalings[0].replica_s / HOUR_S if scalings else None,
        "by_minute": by_minute(best, scalings[0], load.duration_s) if scalings else None,
        **numbers,
        "intervals": summary_intervals(drawn) if drawn else None,
        "n_draws": n_draws,
        "limits_ms": limits_ms or {},
        "scheduler": asdict(schedulers[0]),
        "law": asdict(laws[0]),
        "warnings": [*notes, *offer.warnings],
        "characterization": offer.asked.source.facts(),
        "serving": offer.subject.serving.facts(),
        "seed": question.seed,
    }
    return dict(jsonable(facts))


def by_minute(simulation: Simulation, scaling: Scaling, duration_s: float) -> list[dict[str, Any]]:
    """Return for each minute replicas (at its end), requests (those in flight as its mean)."""
    s, rows = simulation, []
    end_s = s.arrival_s + np.where(np.isnan(s.e2e_s), 0.0, s.e2e_s)
    for start_s in np.arange(0.0, duration_s, MINUTE_S):
        until_s = min(start_s + MINUTE_S, duration_s)
        is_own = (s.arrival_s >= start_s) & ((s.arrival_s < until_s) | (until_s == duration_s))
        busy_s = np.minimum(end_s, until_s) - np.maximum(s.arrival_s, start_s)
        ttft_s = s.ttft_s[is_own & (s.status == OK)]
        ends = np.quantile(ttft_s, (0.5, 0.9)) if len(ttft_s) else (np.nan, np.nan)
        row = {"start_s": start_s, "n_requests": int(is_own.sum())}
        row |= {"in_flight": float(np.maximum(busy_s, 0).sum() / (until_s - start_s))}
        row |= {"median_ttft_ms": 1e3 * ends[0], "p90_ttft_ms": 1e3 * ends[1]}
        rows.append({**row, **scaling.at(until_s - 1e-6)})
    return rows


def _notes(simulation: Simulation, scheduler: Scheduler) -> list[str]:
    """Return how many requests are refused. Raises InputError if all are."""
    tokens = simulation.input_tokens + simulation.output_tokens
    n_refused = int((tokens > scheduler.longest).sum())
    if n_refused == len(tokens):
        problem = f"the shortest request has {tokens.min()} tokens, the server takes "
        fix = "give shorter requests, more KV memory, or a higher --max-model-len"
        field = "--max-model-len"
        raise InputError(f"{problem}{scheduler.longest}", field=field, fix=fix)
    if not n_refused:
        return []
    has, are = ("has", "is") if n_refused == 1 else ("have", "are")
    return [
        f"{n_refused:,} of {len(tokens):,} requests {has} more than {scheduler.longest:,} tokens "
        f"and {are} refused."
    ]


def _saturation(
    simulation: Simulation, scheduler: Scheduler, law: StepLaw, duration_s: float
) -> dict[str, Any]:
    """Return the rate of arrivals that are not refused, and the largest one that is served."""
    inputs, outputs = simulation.input_tokens, simulation.output_tokens
    is_taken = inputs + outputs <= scheduler.longest
    is_ok = simulation.status == OK
    cached = simulation.cached_tokens[is_ok].mean() if is_ok.any() else 0.0
    each = MeanLoad(inputs[is_taken].mean(), max(outputs[is_taken].mean(), 2.0), cached)
    limits = BatchLimits.of(scheduler)
    served_rps = simulation.n_replicas * float(saturation_rps(law, limits, each))
    offered_rps = float(is_taken.sum() / duration_s)
    # As many as are served at once never wait, however fast a short burst of them comes.
    at_once = simulation.n_replicas * float(limits.most_decoding(each))
    return {
        "offered_rps": offered_rps,
        "served_rps": served_rps,
        "is_exceeded": (offered_rps - served_rps) * duration_s > at_once,
    }


def simulation_document(facts: Mapping[str, Any], origin: Mapping[str, Any]) -> Document:
    """Return an answer of `simulate_llm` for people (blocks) and programs (data)."""
    load, has_intervals = facts["load"], bool(facts["intervals"])
    count = plural(load["n_requests"], "request")
    if load["users"] is not None:
        count = plural(load["users"], "user")
    decode, lasted_s = "", load["duration_s"]
    if facts["decode_replicas"] is not None:
        if load["users"] is not None:  # who send some requests each
            lasted_s = load["n_requests"] / facts["request_rate_rps"]
        decode = f" for prefill and {facts['decode_replicas']} × {facts['decode_gpu_profile_id']}"
        decode += " for decode"
    is_scaled = facts["by_minute"] is not None
    replicas = "replicas that a policy orders of" if is_scaled else f"{facts['replicas']} ×"
    headline = (
        f"{facts['llm_id']} on {replicas} {facts['gpu_profile_id']}{decode}: {count} of "
        f"{load['name']} in {duration_words(lasted_s)}, "
        f"{number(load['mean_input_tokens'])} input and {number(load['mean_output_tokens'])} "
        "output tokens on average (simulated)"
    )

    def interval(write: Any, *names: str) -> list[str]:
        ends = facts["intervals"]
        if not ends:
            return []
        for name in names:
            ends = ends[name]
        return ["–" if None in ends else " to ".join(map(write, ends))]

    latencies = [
        [label, *facts[name].values(), *interval(number, name, "p95")]
        for name, label in SHOWN.items()
    ]
    rates = [
        [label, write(facts[name]), *interval(write, name)]
        for name, (label, write) in _RATES.items()
    ]
    header = ["Latency", "mean", *STATISTICS, *["90% interval of p95"] * has_intervals]
    rate_header = ["Rate or use", "", *["90% interval"] * has_intervals]
    minutes: list[Block] = []
    if facts["by_minute"] is not None:
        hours = f"{number(facts['replica_hours'])} replica hours, starts included"
        columns = ["From", "Requests", "In flight", "TTFT p50 (ms)", "TTFT p90 (ms)"]
        values = [
            [duration_words(start_s), *map(number, numbers)]
            for start_s, *numbers in (row.values() for row in facts["by_minute"])
        ]
        table = Table([*columns, "Ordered", "Ready"], values)
        minutes = [Section("By minute", [Note(hours), table])]
    given = {"replicas": facts["replicas"], "router": facts["router"], **facts["scheduler"]}
    settings = [[name, "–" if value is None else str(value)] for name, value in given.items()]
    law = [[name, number(value)] for name, value in facts["law"].items()]
    blocks: list[Block] = [
        Headline(headline),
        *(Note(text, "warning") for text in facts["warnings"]),
        Table(header, latencies),
        Table(rate_header, rates, {0, 1, 2}, has_header_in_text=False),
        *minutes,
        Section("vLLM's settings", [Table(["Setting", "Value"], settings, {0, 1})], is_detail=True),
        Section("The law of a step", [Table(["Term", "Value"], law)], is_detail=True),
        Note(source_line(facts)),
    ]
    return Document(f"{facts['llm_id']}: simulation", blocks, facts, origin=origin)

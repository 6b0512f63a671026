"""The answer of `sextant simulate`: latencies of one deployment under given traffic."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sextant.answer.answer import source_line
from sextant.answer.question import Question
from sextant.answer.step_laws import Settings, find_laws
from sextant.base.errors import InputError
from sextant.base.files import jsonable
from sextant.pages.blocks import Block, Chart, Document, Headline, Note, Section, Table
from sextant.pages.wording import duration_words, number, percent, plural
from sextant.points.metrics import SHOWN, STATISTICS
from sextant.simulate import (
    OK,
    Requests,
    Router,
    Scheduler,
    Simulation,
    StepLaw,
    TooFewRequests,
    intervals,
    on_threads,
    simulate,
    simulate_closed,
    summarise,
)
from sextant.simulate.laws import Limits, Load, saturation_rps

_SHARES = np.linspace(0, 1, 101)
_MOST_REQUESTS = 10_000_000
_RATES = {
    "throughput_tok_s": ("output tokens a second", number),
    "request_rate_rps": ("requests a second", number),
    "goodput_rps": ("goodput, requests a second", number),
    "failed_fraction": ("failed", percent),
    "utilisation": ("engines busy", percent),
    "kv_used_fraction": ("KV cache in use", percent),
    "cached_fraction": ("input that hit the prefix cache", percent),
    "preemptions": ("preemptions", number),
}


@dataclass(frozen=True)
class OpenLoop:
    """Requests that arrive whatever the servers do."""

    name: str
    requests: Requests
    duration_s: float
    notes: tuple[str, ...] = ()
    """Warnings of the answer about them."""

    def run(self, scheduler: Scheduler, law: StepLaw, replicas: int, **how: Any) -> Simulation:
        """Simulate it; `how` as in `simulate`."""
        return simulate(self.requests, scheduler, law, n_replicas=replicas, **how)


@dataclass(frozen=True)
class Users:
    """Users who each send a request when their last one is answered."""

    name: str
    users: int
    draw: Callable[[int], Requests]
    """Draws so many requests."""
    duration_s: float

    def run(self, scheduler: Scheduler, law: StepLaw, replicas: int, **how: Any) -> Simulation:
        """Simulate it with as many requests as the users send; they stay on their replicas."""
        del how["router"]
        n = 64 * self.users
        while True:
            how |= {"duration_s": self.duration_s, "n_replicas": replicas}
            try:
                return simulate_closed(self.users, self.draw(n), scheduler, law, **how)
            except TooFewRequests:
                if n > _MOST_REQUESTS:
                    problem = f"{self.users} users send more than {_MOST_REQUESTS:,} requests"
                    fix = "give a shorter --duration, or fewer --users"
                    raise InputError(problem, field="--duration", fix=fix) from None
            n *= 4


def simulate_llm(
    question: Question,
    load: OpenLoop | Users,
    settings: Settings,
    *,
    replicas: int = 1,
    router: Router = "round_robin",
    warmup_s: float = 0.0,
    n_draws: int = 100,
    limits_ms: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Return latencies, rates and use of a deployment at the most likely law of a step.

    Args:
        question: the LLM, the measurements, the lengths of the requests, on one GPU profile.
        load: the requests.
        settings: of each replica.
        replicas: behind a router.
        router: sends each request to a replica.
        warmup_s: requests that arrive before are simulated and not counted.
        n_draws: draws of the law that the 90% `intervals` are made of; 0 for none.
        limits_ms: limits of goodput, as in `summarise`.

    Returns:
        The numbers of `summarise`, `intervals` of each of them (None without draws),
        `distribution` (TTFT and E2E at `share`), `saturation` (the rate that arrives and the one
        that the replicas can serve; None of users), and the question.

    Raises:
        InputError: an option is wrong, the LLM does not fit, or every request is refused.
    """
    (gpu_profile_id,) = question.gpu_profile_ids
    offer = find_laws(question, settings, n_draws, need_prices=False)
    laws, schedulers = offer.laws[gpu_profile_id]
    how = {"router": router, "warmup_s": warmup_s}

    def one(scheduler: Scheduler, law: StepLaw) -> dict[str, Any]:
        return summarise(load.run(scheduler, law, replicas, **how), limits_ms)

    best = load.run(schedulers[0], laws[0], replicas, **how)
    notes = _notes(best, schedulers[0])
    numbers = summarise(best, limits_ms)
    if numbers["failed_fraction"] == 1:
        notes.append("Every request is refused or times out: there are no latencies.")
    saturation = None
    if isinstance(load, OpenLoop):
        notes += load.notes
        saturation = _saturation(best, schedulers[0], laws[0], load.duration_s)
        if saturation["is_exceeded"]:
            offered, served = (number(saturation[name]) for name in ("offered_rps", "served_rps"))
            text = "Arrivals exceed what the replicas serve: {} requests/s arrive, about {} can be "
            text += "served. Waits grow for as long as requests arrive."
            notes.insert(0, text.format(offered, served))
    drawn = on_threads(one, schedulers[1:], laws[1:])
    facts = {
        "llm_id": offer.llm_id,
        "gpu_profile_id": gpu_profile_id,
        "replicas": replicas,
        "router": router,
        "load": {
            "name": load.name,
            "users": load.users if isinstance(load, Users) else None,
            "n_requests": len(best.status),
            "duration_s": load.duration_s,
            "warmup_s": warmup_s,
            "mean_input_tokens": float(best.input_tokens.mean()),
            "mean_output_tokens": float(best.output_tokens.mean()),
        },
        "saturation": saturation,
        **numbers,
        "intervals": intervals(drawn) if drawn else None,
        "n_draws": n_draws,
        "limits_ms": limits_ms or {},
        "distribution": _distribution(best),
        "scheduler": asdict(schedulers[0]),
        "law": asdict(laws[0]),
        "warnings": [*notes, *offer.warnings],
        "characterization": offer.source.facts(),
        "serving": offer.facts,
        "seed": question.seed,
    }
    return dict(jsonable(facts))


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
    each = Load(inputs[is_taken].mean(), max(outputs[is_taken].mean(), 2.0), cached)
    limits = Limits.of(scheduler)
    served_rps = simulation.n_replicas * float(saturation_rps(law, limits, each))
    offered_rps = float(is_taken.sum() / duration_s)
    # As many as are served at once never wait, however fast a short burst of them comes.
    at_once = simulation.n_replicas * float(limits.most_decoding(each))
    return {
        "offered_rps": offered_rps,
        "served_rps": served_rps,
        "is_exceeded": (offered_rps - served_rps) * duration_s > at_once,
    }


def _distribution(simulation: Simulation) -> dict[str, list[float]]:
    is_ok = simulation.is_counted & (simulation.status == OK)
    distribution = {"share": _SHARES.tolist()}
    for name in ("ttft", "e2e"):
        values = getattr(simulation, f"{name}_s")[is_ok]
        quantiles = np.quantile(values, _SHARES) if len(values) else np.full(len(_SHARES), np.nan)
        distribution[f"{name}_ms"] = (1e3 * quantiles).tolist()
    return distribution


def simulation_document(facts: Mapping[str, Any], origin: Mapping[str, Any]) -> Document:
    """Return an answer of `simulate_llm` for people (blocks) and programs (data)."""
    load, has_intervals = facts["load"], bool(facts["intervals"])
    count = plural(load["n_requests"], "request")
    if load["users"] is not None:
        count = plural(load["users"], "user")
    headline = (
        f"{facts['llm_id']} on {facts['replicas']} × {facts['gpu_profile_id']}: {count} of "
        f"{load['name']} in {duration_words(load['duration_s'])}, "
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
    given = {"replicas": facts["replicas"], "router": facts["router"], **facts["scheduler"]}
    settings = [[name, "–" if value is None else str(value)] for name, value in given.items()]
    law = [[name, number(value)] for name, value in facts["law"].items()]
    blocks: list[Block] = [
        Headline(headline),
        *(Note(text, "warning") for text in facts["warnings"]),
        Section("Distributions", [Chart(lambda: _figure(facts), _CAPTION)]),
        Table(header, latencies),
        Table(rate_header, rates, {0, 1, 2}, has_header_in_text=False),
        Section("vLLM's settings", [Table(["Setting", "Value"], settings, {0, 1})], is_detail=True),
        Section("The law of a step", [Table(["Term", "Value"], law)], is_detail=True),
        Note(source_line(facts)),
    ]
    return Document(f"{facts['llm_id']}: simulation", blocks, facts, origin=origin)


_CAPTION = "Of requests that came after the warm-up and were answered; ITL is the gap of tokens."


def _figure(facts: Mapping[str, Any]) -> str:
    from sextant.pages.charts import Axis, Curve, Panel, panels_figure

    curves, share = facts["distribution"], Axis("Share of requests", low=0, high=1.02)
    panels = [
        Panel(label, Axis(label, is_log=True), share, [Curve(label, curves[name], curves["share"])])
        for name, label in SHOWN.items()
        if name in curves and curves[name][0] is not None
    ]
    return panels_figure(panels, "Latencies of all requests", is_step=True) if panels else ""

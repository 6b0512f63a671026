"""The command `simulate`: latencies of one deployment under given traffic."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import AskedOptions, LimitOptions
from sextant.cli.capacity import ServerOptions, TrafficOptions, seconds_of, traffic_of
from sextant.cli.options import PageFile, Printed, grouped, naming_options
from sextant.cli.terminal import check_page, say_answer

if TYPE_CHECKING:
    from sextant.answer.capacity.latencies import OpenLoop, Users
    from sextant.answer.question import Requests as Lengths
    from sextant.simulate.inputs import Requests

_FIELDS: dict[str | None, str] = {
    "kv_tokens": "--kv-dtype",
    "timeout_s": "--timeout-s",
    "requests": "--max-model-len",
    "--gpu-profiles": "--gpu-profile",
}


@dataclass(frozen=True, kw_only=True)
class SharingOptions:
    """What requests share, and who sends them."""

    users: Annotated[
        int | None,
        typer.Option(min=1, help="Instead of arrivals: users who each wait for their answer."),
    ] = None
    unique_prompts: Annotated[
        int | None, typer.Option(min=1, help="Whole prompts that repeat; all differ by default.")
    ] = None


@grouped
def simulate(
    *,
    gpu_profile: Annotated[str, typer.Option(help="GPU profile of a replica, e.g. 1xH100-80GB.")],
    replicas: Annotated[int, typer.Option(min=1, help="Replicas behind a router.")] = 1,
    router: Annotated[
        Literal["round_robin", "least_requests", "prefix"],
        typer.Option(help="Where a request goes: in turn, to the fewest requests, by its prefix."),
    ] = "round_robin",
    traffic: TrafficOptions,
    sharing: SharingOptions,
    limits: LimitOptions,
    asked: AskedOptions,
    server: ServerOptions,
    warmup: Annotated[
        str, typer.Option(help="Requests that arrive before are simulated and not counted.")
    ] = "0s",
    draws: Annotated[
        int, typer.Option(min=0, help="Draws of the law for the intervals; 0: none.")
    ] = 100,
    printed: Printed = "text",
    out: PageFile = None,
) -> None:
    """Simulate an LLM's servers under given traffic: latencies, throughput, failures."""
    from sextant.answer.capacity.latencies import Deployment, simulate_llm
    from sextant.answer.capacity.latencies_text import write_simulation
    from sextant.answer.step_laws import MEDIANS

    check_page(printed, out)
    if asked.prefix_hit_rate:
        fix = "give --unique-prompts: the simulated cache finds what repeats"
        raise InputError("hits are simulated here", field="--prefix-hit-rate", fix=fix)
    load, lengths = _load(traffic, sharing, asked, server.prefix_caching)
    question = replace(asked.question(MEDIANS, gpu_profile_ids=(gpu_profile,)), requests=lengths)
    settings = server.of()
    warmup_s = 0.0 if warmup.strip() in ("0", "0s") else seconds_of(warmup, "--warmup")
    with naming_options(_FIELDS):
        found = simulate_llm(
            question,
            load,
            Deployment(gpu_profile, settings, replicas, router),
            warmup_s=warmup_s,
            n_draws=draws,
            limits_ms=limits.of_each(),
        )
    if out is not None:
        write_simulation(found, out)
    say_answer(found, printed, out)


def _load(
    traffic: TrafficOptions, sharing: SharingOptions, asked: AskedOptions, has_caching: bool
) -> "tuple[OpenLoop | Users, Lengths]":
    """Return what is asked of the servers, and the lengths of its requests."""
    from sextant.answer.capacity.demand import prefix_notes, requests_of_demand
    from sextant.answer.capacity.latencies import OpenLoop

    if sharing.users is not None:
        return _users(sharing.users, traffic, sharing, asked)
    demand = traffic_of(traffic, asked, None).drawn(0)
    requests = _shared(demand.simulated(), sharing, asked.seed)
    notes = () if sharing.unique_prompts else tuple(prefix_notes(demand, has_caching))
    return OpenLoop(demand.name, requests, demand.duration_s, notes), requests_of_demand(demand)


def _users(
    users: int, traffic: TrafficOptions, sharing: SharingOptions, asked: AskedOptions
) -> "tuple[Users, Lengths]":
    import numpy as np

    from sextant.answer.capacity.demand import lengths_of
    from sextant.answer.capacity.latencies import Users
    from sextant.simulate.inputs import Requests
    from sextant.workload.draw import open_workload

    for option in ("trace", "request_rate", "burstiness"):
        if getattr(traffic, option) is not None:
            fix = "give --users, or arrivals"
            field = "--" + option.replace("_", "-")
            raise InputError("users send when they are answered", field=field, fix=fix)
    lengths = asked.requests()
    if lengths is None:
        fix = "give --workload, or --input-tokens and --output-tokens"
        raise InputError("requests of no length", field="--users", fix=fix)
    is_given = asked.workload is None
    sample = lengths_of(lengths) if is_given else open_workload(asked.workload or "").sample

    def draw(n: int) -> "Requests":
        frame = sample(n, seed=asked.seed)
        inputs, outputs = (frame[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        requests = Requests.of(np.zeros(n), inputs, np.maximum(outputs, 1))
        return _shared(requests, sharing, asked.seed)

    name = "given lengths" if is_given else Path(asked.workload or "").name
    duration_s = seconds_of(traffic.duration or "1h", "--duration")
    return Users(name, users, draw, duration_s), lengths


def _shared(requests: "Requests", sharing: SharingOptions, seed: int) -> "Requests":
    if sharing.unique_prompts is None:
        return requests
    return requests.repeating(sharing.unique_prompts, seed)

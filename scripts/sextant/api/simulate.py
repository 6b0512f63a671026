"""Latencies of a deployment under given traffic."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sextant.api.groups import naming_options, refuse, seconds_of
from sextant.api.keywords import with_keywords
from sextant.api.question_options import LimitOptions, ProbedCaseOptions
from sextant.api.shown import ShownAnswer
from sextant.api.traffic import ROUTERS, SchedulerOptions, TrafficOptions, startup_time_of
from sextant.base.errors import InputError
from sextant.decide.most_replicas import MOST_REPLICAS

if TYPE_CHECKING:
    from sextant.capacity.simulation import Deployment, Sent
    from sextant.workload.lengths import RequestLengths
    from sextant.workload.requests import RequestStream

_FIELDS: dict[str | None, str] = {
    "kv_tokens": "--kv-dtype",
    "timeout_s": "--timeout-s",
    "requests": "--max-model-len",
    "--gpu-profiles": "--gpu-profile",
}


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The deployment, who sends requests, and how it is simulated."""

    gpu_profile: str  #: GPU profile of a replica, e.g. 1xH100-80GB.
    replicas: Annotated[int, typer.Option(min=1, max=MOST_REPLICAS)] = 1
    """Replicas behind a router."""
    decode_replicas: Annotated[int | None, typer.Option(min=1, max=MOST_REPLICAS)] = None
    """Replicas that decode, while --replicas compute the prompts; all do both by default."""
    decode_gpu_profile: str | None = None  #: GPU profile of those; that of the others by default.
    policy: Path | None = None
    """Autoscaling policy, as `capacity` takes it; --replicas are there at the start."""
    startup: str | None = None
    """From the order of a replica until it serves, as `capacity` takes it."""
    router: ROUTERS = "round_robin"
    """Where a request goes: in turn, to the fewest requests, by cached prefix and load."""
    users: Annotated[int | None, typer.Option(min=1, max=100_000)] = None
    """Instead of arrivals: users who each wait for their answer."""
    unique_prompts: Annotated[int | None, typer.Option(min=1)] = None
    """Whole prompts that repeat; all differ by default."""
    warmup: str = "0s"  #: Requests that arrive before are simulated and not counted.
    draws: Annotated[int, typer.Option(min=0, max=10_000)] = 100
    """Draws of the law for the intervals; 0: none."""

    def gpu_profiles(self, traffic: TrafficOptions) -> tuple[str, ...]:
        """Return where the replicas run, and those that decode, if they are separate."""
        if self.decode_replicas is None:
            if self.decode_gpu_profile:
                field = "--decode-gpu-profile"
                fix = "give --decode-replicas"
                raise InputError("the number of its replicas is missing", field=field, fix=fix)
            return (self.gpu_profile,)

        problem = "two pools take requests in turn, share no prefixes, and users send ten each"
        ignored = {
            "--router": self.router != "round_robin",
            "--unique-prompts": self.unique_prompts is not None,
            "--warmup": self.users is not None and self.warmup != "0s",
            "--duration": self.users is not None and traffic.duration is not None,
        }
        for option in (name for name, is_stated in ignored.items() if is_stated):
            raise InputError(problem, field=option, fix="leave it out with --decode-replicas")
        return self.gpu_profile, self.decode_gpu_profile or self.gpu_profile

    def deployment(self) -> "Deployment":
        """Return the deployment, with its policy if there is one."""
        from sextant.capacity.policies import read_policy
        from sextant.capacity.simulation import Deployment

        policy = None
        if self.policy is None:
            refuse(self, "there is no --policy", "startup")
        else:
            problem = "a policy follows requests that arrive"
            refuse(self, problem, "users", "decode_replicas")
            if self.warmup != "0s":
                raise InputError(problem, field="--warmup", fix="leave it out")
            policy = read_policy(self.policy)

        has_no_warmup = self.warmup.strip() in ("0", "0s")
        return Deployment(
            replicas=self.replicas,
            router=self.router,
            decode_replicas=self.decode_replicas,
            policy=policy,
            warmup_s=0.0 if has_no_warmup else seconds_of(self.warmup, "--warmup"),
            startup=startup_time_of(self.startup),
            n_draws=self.draws,
        )


@with_keywords
def simulate(
    *,
    servers: SimulateOptions,
    traffic: TrafficOptions,
    limits: LimitOptions,
    case: ProbedCaseOptions,
    scheduler: SchedulerOptions,
) -> ShownAnswer:
    """Simulate an LLM's servers under given traffic: latencies, throughput, failures.

    Returns
    -------
    ShownAnswer
        The figures of the deployment, in the one row of its frame.

    Raises
    ------
    InputError
        A keyword is wrong, or the LLM does not fit.

    Examples
    --------
    >>> import sextant
    >>> answer = sextant.simulate(
    ...     hf_config="resources/llms/meta-llama__Llama-3.1-8B-Instruct.json",
    ...     gpu_profile="1xH100-80GB", users=8, duration="1min",
    ...     input_tokens=500, output_tokens=100, draws=0,
    ... )
    >>> answer.to_dict()["load"]["users"]
    8
    """
    from sextant.ask.forecast import MEDIANS
    from sextant.base.files import provenance
    from sextant.capacity.simulation import simulate_llm
    from sextant.capacity.simulation_document import simulation_document

    if case.serving.prefix_hit_rate:
        fix = "give --unique-prompts: prompts that repeat hit the simulated cache"
        raise InputError("cache hits are simulated", field="--prefix-hit-rate", fix=fix)

    sent, lengths = _sent(servers, traffic, case, scheduler)
    any_limit = replace(MEDIANS, itl_ms=None)  # outputs of one token have no ITL
    profiles = servers.gpu_profiles(traffic)
    deployment = servers.deployment()
    question = case.question(any_limit, gpu_profile_ids=profiles)
    question = replace(question, requests=lengths)
    settings = scheduler.of(question)
    with naming_options(_FIELDS):
        deployment = replace(deployment, limits_ms=limits.of_each())
        answer = simulate_llm(question, sent, settings, deployment)

    facts = answer.to_dict()
    columns = ("llm_id", "gpu_profile_id", "replicas", "router", *answer.numbers)
    return ShownAnswer(
        result=answer,
        document=lambda _: simulation_document(answer, provenance()),
        rows=[{name: facts[name] for name in columns}],
    )


def _sent(
    servers: SimulateOptions,
    traffic: TrafficOptions,
    case: ProbedCaseOptions,
    scheduler: SchedulerOptions,
) -> "tuple[Sent, RequestLengths | None]":
    """Return what is sent, and its lengths; None: none are stated."""
    from sextant.ask.traffic import demand_notes
    from sextant.capacity.simulation import MOST_REQUESTS, Sent
    from sextant.workload.requests import mean_lengths_of

    def repeating(requests: "RequestStream") -> "RequestStream":
        n = servers.unique_prompts
        return requests.repeating(n, case.seed) if n else requests

    assumed = [] if traffic.trace is not None else case.lengths_notes()
    if servers.users is not None:
        sent = _users(servers.users, traffic, case)
        draw: Callable[[int], RequestStream] = sent.requests
        sent = replace(sent, requests=lambda n: repeating(draw(n)), notes=tuple(assumed))
        return sent, case.requests.lengths()

    demand: RequestStream = traffic.of(case, None).drawn(0)
    if demand.n > MOST_REQUESTS:
        problem = f"{demand.n:,} requests; a simulation takes {MOST_REQUESTS:,}"
        fix = "give some days of the trace, one --llm-in-trace or --service-in-trace"
        raise InputError(problem, field="--trace", fix=fix)
    requests = repeating(demand)
    notes = demand_notes(demand, None if servers.unique_prompts else scheduler.prefix_caching)
    notes = [*assumed, *notes]
    sent = Sent(demand.name, lambda n: requests, demand.duration_s, notes=tuple(notes))
    return sent, None if assumed else mean_lengths_of(demand)


def _users(users: int, traffic: TrafficOptions, case: ProbedCaseOptions) -> "Sent":
    from sextant.capacity.simulation import Sent
    from sextant.workload.draw import open_workload
    from sextant.workload.lengths import length_sampler
    from sextant.workload.requests import RequestStream

    problem = "users send when their last request is answered"
    refuse(traffic, problem, "trace", "request_rate", "burstiness")
    sample = length_sampler(case.lengths())
    name = "given lengths"
    if case.requests.workload is not None:
        sample = open_workload(case.requests.workload).sample
        name = Path(case.requests.workload).name

    def draw(n: int) -> RequestStream:
        frame = sample(n, seed=case.seed)
        inputs, outputs = (frame[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        return RequestStream.of_users(users, inputs, outputs, case.seed)

    return Sent(name, draw, seconds_of(traffic.duration or "1h", "--duration"), users)

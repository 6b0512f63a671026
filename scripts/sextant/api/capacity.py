"""Replicas of which GPU profile meet an SLO under given traffic."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.api.groups import naming_options, refuse, seconds_of
from sextant.api.keywords import with_keywords
from sextant.api.question_options import (
    CandidateOptions,
    CaseOptions,
    LimitOptions,
    ProbedCaseOptions,
    VaryOption,
    refuse_varied_budget,
)
from sextant.api.shown import ShownAnswer, shown_budget, shown_options
from sextant.api.traffic import ROUTERS, SchedulerOptions, TrafficOptions, startup_time_of
from sextant.base.errors import InputError
from sextant.decide.most_replicas import MOST_REPLICAS

if TYPE_CHECKING:
    from sextant.capacity.question import CapacityQuestion
    from sextant.facts.slo import SLO

_RISK = 0.1
"""Largest probability that a window is missed, where none is stated."""


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """What has to hold besides the limits, and in which windows."""

    goodput: float | None = None  #: Least share of requests that are answered within all limits.
    max_failed: float = 0.01  #: Largest share of requests that are refused or time out.
    window: str | None = None
    """Windows in which the SLO holds, e.g. 60s, or whole: that of a rate without --duration by
    default, 5min of others."""
    risk: float | None = None  #: Largest probability that a window is missed; 0.1 by default.

    def largest_risk(self, n_draws: int) -> float:
        """Return the risk. Raises InputError for one that is no probability, or without draws."""
        if self.risk is None:
            return _RISK
        if not 0 < self.risk < 1:
            fix = "give a probability between 0 and 1, e.g. 0.1"
            raise InputError(f"{self.risk:g} is not a risk", field="--risk", fix=fix)
        if not n_draws:
            problem = "without draws of the law there is no probability, and no risk (--draws 0)"
            raise InputError(problem, field="--risk", fix="leave one of them out")
        return self.risk

    def window_s(self) -> float | None:
        """Return how long windows are; None: there is one, the whole traffic."""
        from sextant.decide.windows import WINDOW_S

        if self.window is None:
            return WINDOW_S
        return None if self.window == "whole" else seconds_of(self.window, "--window")


@dataclass(frozen=True, kw_only=True)
class PromiseOptions:
    """What has to hold: the limits, and the shares and windows in which they do."""

    limits: LimitOptions
    keep: KeepOptions

    def slo(self, percentile: int, rate_rps: float) -> "SLO":
        """Return the limits, at this percentile, with the traffic's rate as their load."""
        from sextant.facts.slo import SLO

        fields: dict[str, Any] = {"percentile": percentile, "request_rate_rps": rate_rps}
        with naming_options({"request_rate_rps": "--traffic, --speed"}):
            return SLO("asked", max_failed=self.keep.max_failed, **self.limits.of(), **fields)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How replicas come and go, and how their number is searched for."""

    slot: str = "1h"  #: How long a number of replicas stays, e.g. 1h.
    startup: str | None = None
    """From the order of a replica until it serves: 5min, or phases of the measured start,
    image=0s,weights=60s; by the LLM's size by default."""
    least_replicas: Annotated[int, typer.Option(min=1, max=MOST_REPLICAS)] = 1
    """Replicas at any time."""
    router: ROUTERS = "round_robin"
    """Where a request goes: in turn, to the fewest requests, by cached prefix and load."""
    split_tokens: Annotated[int | None, typer.Option(min=1)] = None
    """Compare with two pools: inputs of up to so many tokens, and longer ones."""
    disaggregated: Annotated[bool, typer.Option("--disaggregated")] = False
    """Compare with prefill and decode on replicas of their own, of one type of GPU."""
    policy: Path | None = None
    """Autoscaling policy to compare: a KEDA ScaledObject, a HorizontalPodAutoscaler, a Ray Serve
    config, or a .csv of t_s and ready or replicas."""
    tune_policy: Path | None = None
    """File to write: a KEDA ScaledObject with the target that costs least, of --policy's metric or
    of requests in flight, with --policy's labels; beside it .values.yaml for vLLM's production
    stack. Of a Ray Serve config that stays the best: its autoscaling_config."""
    attainment: float | None = None
    """Share of windows that a tuned policy has to meet; 0.99 by default."""
    draws: Annotated[int, typer.Option(min=0, max=100_000)] = 1000
    """Draws of the law; 0: the likeliest alone."""
    usd_per_month: float | None = None
    """A budget for a month of 730 hours: the answer is how much of this traffic it serves, as a
    factor."""
    vary: VaryOption = None

    def needed_attainment(self) -> float | None:
        """Return the share of windows that a tuned policy has to meet; None if none is tuned."""
        if self.tune_policy is None:
            refuse(self, "no policy is tuned", "attainment")
            return None
        if self.tune_policy == self.policy:
            fix = "give another file"
            raise InputError("it would replace --policy", field="--tune-policy", fix=fix)
        attainment = self.attainment or 0.99
        if not 0 < attainment <= 1:
            fix = "give a share of the windows, e.g. 0.99"
            raise InputError(f"{attainment:g} is not a share", field="--attainment", fix=fix)
        return attainment


@with_keywords
def capacity(
    *,
    traffic: TrafficOptions,
    promise: PromiseOptions,
    case: ProbedCaseOptions,
    candidates: CandidateOptions,
    server: SchedulerOptions,
    search: SearchOptions,
) -> ShownAnswer:
    """Find how many replicas of which GPU profile meet an SLO under a trace's own traffic.

    Returns
    -------
    ShownAnswer
        The options; a row of its frame per GPU profile, the cheapest option first.

    Raises
    ------
    InputError
        A keyword is wrong, or the measurements cannot answer.

    Examples
    --------
    >>> import sextant
    >>> answer = sextant.capacity(
    ...     hf_config="resources/llms/meta-llama__Llama-3.1-8B-Instruct.json",
    ...     request_rate=20, duration="1min", input_tokens=500, output_tokens=100,
    ...     ttft_ms="p95:1000", gpu_profiles=["1xH100-80GB"], draws=0,
    ... )
    >>> answer.to_frame()["gpu_profile_id"].tolist()
    ['1xH100-80GB']
    """
    question = capacity_question(traffic, promise, case, candidates, server, search)
    if search.usd_per_month is None:
        return answer_traffic(question, search.tune_policy)
    refuse_varied_budget(search.vary)
    if question.has_policy or question.split_tokens is not None or question.is_disaggregated:
        fields = "--policy, --tune-policy, --split-tokens, --disaggregated"
        raise InputError("a budget is asked about", field=fields, fix="leave them out")
    return answer_traffic_budget(question, search.usd_per_month)


def answer_traffic_budget(
    question: "CapacityQuestion", usd_per_month: float, notes: tuple[str, ...] = ()
) -> ShownAnswer:
    """Return how much of the traffic a budget serves, with these warnings first."""
    from sextant.capacity.capacity import answer_budget

    return shown_budget(answer_budget(question, usd_per_month, (*notes, *question.notes)))


def answer_traffic(
    question: "CapacityQuestion", tune_policy: Path | None = None, notes: tuple[str, ...] = ()
) -> ShownAnswer:
    """Return the answer, with these warnings first; write a tuned policy to `tune_policy`."""
    from sextant.base.files import provenance
    from sextant.base.sheets import write_yaml
    from sextant.capacity.capacity import answer_capacity
    from sextant.capacity.document import capacity_document
    from sextant.capacity.manifests import ScaledObject

    answer = answer_capacity(question, (*notes, *question.notes))

    scaling = answer.findings.scaling if answer.findings else None
    if tune_policy is not None and scaling is not None and scaling.manifest is not None:
        write_yaml(tune_policy, scaling.manifest.to_dict())
        if isinstance(scaling.manifest, ScaledObject):
            write_yaml(tune_policy.with_suffix(".values.yaml"), scaling.manifest.stack_values())

    return shown_options(answer, lambda _: capacity_document(answer, provenance()))


def capacity_question(
    traffic: TrafficOptions,
    promise: PromiseOptions,
    case: CaseOptions,
    candidates: CandidateOptions,
    server: SchedulerOptions,
    search: SearchOptions,
) -> "CapacityQuestion":
    """Return the question that the options are. Raises InputError for a wrong one."""
    from sextant.ask.traffic import DrawnTraffic, TraceTraffic
    from sextant.ask.variation import parse_variants
    from sextant.capacity.policies import read_policy
    from sextant.capacity.question import CapacityQuestion, Terms
    from sextant.decide.windows import Target
    from sextant.workload.requests import mean_lengths_of

    keep = promise.keep
    risk = keep.largest_risk(search.draws)
    window_s = keep.window_s()
    arriving = traffic.of(case, window_s)
    if isinstance(arriving, TraceTraffic):
        arriving = arriving.busiest_part()
    steady = None
    is_plain = keep.window is None and traffic.duration is None
    if isinstance(arriving, DrawnTraffic) and is_plain:
        steady = arriving.steady()
    demand = arriving.drawn(0)

    slo = promise.slo(case.percentile, demand.rate_rps)
    with naming_options({}):
        target = Target(slo.limits, keep.goodput, keep.max_failed, None if steady else window_s)
    question = case.question(slo, **candidates.of())
    assumed = [] if traffic.trace is not None else case.lengths_notes()
    if steady is None and not assumed:
        question = replace(question, requests=mean_lengths_of(demand))

    slot_s = seconds_of(search.slot, "--slot")
    terms = Terms(slot_s, startup_time_of(search.startup), search.least_replicas)
    policy = read_policy(search.policy) if search.policy is not None else None
    return CapacityQuestion(
        question,
        arriving,
        target,
        terms=terms,
        attainment=search.needed_attainment(),
        settings=server.of(question),
        risk=risk,
        n_draws=search.draws,
        router=search.router,
        split_tokens=search.split_tokens,
        is_disaggregated=search.disaggregated,
        policy=policy,
        steady=steady,
        variants=tuple(parse_variants(search.vary or ())),
        notes=tuple(assumed),
    )

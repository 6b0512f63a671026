"""The answer of `sextant capacity`: types, and their JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from sextant.answer.answer import Answer
from sextant.answer.drafting import BestDraft
from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption
from sextant.decide.simulated_sizing import summarise_windows
from sextant.decide.windows import Judged, Target
from sextant.facts.engine import Startup
from sextant.facts.slo import SLO
from sextant.workload.requests import RequestStream


@dataclass(frozen=True, kw_only=True)
class AloneResults:
    """The results if each request were alone on a replica: no number of replicas does better."""

    n_refused: int | None = None
    """Requests that fail even so."""
    refused_share: float | None = None
    """The largest share of them in a window."""
    alone_limit: str | None = None
    """The limit that these requests come nearest to, or break."""
    alone_ratio: float | None = None
    """Their latency over it."""


@dataclass(frozen=True, kw_only=True)
class CapacityOutcome:
    """What the traffic takes on one GPU profile, or why it is no option."""

    gpu_profile_id: str
    status: str
    """`meets`, `too_slow`, `refused`, `too_many` or `unsure` (`Sizing.status`), `does_not_fit`."""
    is_gpu_measured: bool
    replicas: int | None = None
    usd_per_hour: float | None = None
    probability_met: float | None = None
    replicas_lo: int | None = None
    """Ends of the interval of the needed replicas that holds 90% of the draws."""
    replicas_hi: int | None = None
    rate_at_slo_rps: float | None = None
    """The mean rate of such traffic that each replica serves."""
    binds: str | None = None
    """What keeps a replica from more: `limits`, `compute`, `kv_cache` or `batch`."""
    alone: AloneResults = field(default_factory=AloneResults)
    kv_tokens: int | None = None
    reason: str | None = None
    """Why the LLM does not fit."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "CapacityOutcome":
        """Return the outcome of a row of table `capacity`, which lacks some columns."""
        alone = AloneResults(**_columns(AloneResults, row))
        return cls(**_columns(cls, row), alone=alone)

    @property
    def option(self) -> Option:
        """Its replicas as an option; all None where there are none."""
        if not self.replicas:
            return Option()
        return Option(
            self.gpu_profile_id, self.replicas, None, self.usd_per_hour, self.probability_met
        )

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        facts: dict[str, Any] = asdict(self)
        alone: dict[str, Any] = facts.pop("alone")
        return facts | alone


def _columns(kind: type, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a row that are fields of a type."""
    return {column.name: row[column.name] for column in fields(kind) if column.name in row}


@dataclass(frozen=True)
class WindowsSummary:
    """How many windows a number of replicas misses, and by how much."""

    n_windows: int
    n_windows_missed: int
    failed_fraction: float
    worst_ratio: float
    """The largest latency over its limit in any window."""
    worst_limit: str | None

    @classmethod
    def of(cls, judged: Judged, target: Target) -> "WindowsSummary":
        """Summarise the windows of a simulation."""
        return cls(**summarise_windows(judged, target))


@dataclass(frozen=True)
class Neighbour:
    """The results of another number of replicas."""

    replicas: int
    usd_per_hour: float
    probability_met: float | None
    windows: WindowsSummary

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return _flat(self)


@dataclass(frozen=True)
class ReplicaFailure:
    """The results when one replica fails in the busiest minute, and is back later."""

    at_s: float
    back_s: float
    windows: WindowsSummary

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return _flat(self)


@dataclass(frozen=True)
class Growth:
    """The results with more traffic, and the replicas that it needs."""

    factor: float
    replicas_needed: int | None
    """None: no number of replicas is enough."""
    usd_per_hour: float | None
    windows: WindowsSummary

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return _flat(self)


def _flat(row: Any) -> dict[str, Any]:
    """Return the fields of a row, those of its windows among them."""
    facts: dict[str, Any] = asdict(row)
    windows: dict[str, Any] = facts.pop("windows")
    return facts | windows


@dataclass(frozen=True)
class Slot:
    """A slot of a schedule, e.g. an hour of the day."""

    name: str
    replicas: int
    draft: BestDraft | None = None
    """What speculation is worth in it; None: it is not asked about."""

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        draft = {} if self.draft is None else asdict(self.draft)
        return {"slot": self.name, "replicas": self.replicas, **draft}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Replicas by slot of time, beside replicas that stay."""

    replicas: Sequence[int]
    """By slot of the traffic's time."""
    slots: Sequence[Slot]
    """By name: slots of one name, e.g. an hour of all days, have the same replicas."""
    replica_hours: float
    """Starts included."""
    fixed_replica_hours: float
    n_windows_missed: int
    slot_s: float
    least: int
    """Replicas at any time."""
    startup: Startup
    usd_per_hour_saved: float
    """On average."""
    busiest_draft: BestDraft | None = None
    """What speculation is worth at the busiest time; None: it is not asked about."""

    @property
    def saved(self) -> float:
        """Share of the replica hours that the schedule saves."""
        return 1 - self.replica_hours / self.fixed_replica_hours

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        drafting = {}
        if self.busiest_draft is not None:
            drafting = {"drafting": asdict(self.busiest_draft)}
        return {
            "replicas": [*self.replicas],
            "by_slot": [slot.to_dict() for slot in self.slots],
            "replica_hours": self.replica_hours,
            "fixed_replica_hours": self.fixed_replica_hours,
            "saved": self.saved,
            "n_windows_missed": self.n_windows_missed,
            "slot_s": self.slot_s,
            "least": self.least,
            **self.startup.facts(),
            "usd_per_hour_saved": self.usd_per_hour_saved,
            **drafting,
        }


@dataclass(frozen=True)
class WindowCurves:
    """Latencies and failures by window, for a figure; None where a window has none."""

    start_s: Sequence[float]
    n_requests: Sequence[int]
    is_met: Sequence[bool]
    failed_fraction: Sequence[float | None]
    latencies_ms: Mapping[str, Sequence[float | None]]
    """By metric."""

    @classmethod
    def of(cls, judged: Judged) -> "WindowCurves":
        """Return the curves of judged windows."""
        n_requests = judged.n_requests
        failed = np.where(n_requests, judged.n_failed / np.maximum(n_requests, 1), np.nan)
        return cls(
            judged.start_s.tolist(),
            n_requests.tolist(),
            judged.is_met.tolist(),
            _none_for_nan(failed),
            {metric: _none_for_nan(values) for metric, values in judged.latencies_ms.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        facts = asdict(self)
        latencies_ms = facts.pop("latencies_ms")
        return facts | {f"{metric}_ms": values for metric, values in latencies_ms.items()}


def _none_for_nan(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


@dataclass(frozen=True, kw_only=True)
class TrafficTimeline:
    """Traffic, replicas and results over time."""

    bucket_s: int
    request_rate_rps: Sequence[float | None]
    """By bucket; None where a long trace was not simulated."""
    window_s: float
    replicas: int
    slot_s: float
    scheduled_replicas: Sequence[int]
    """By slot."""
    fixed: WindowCurves
    scheduled: WindowCurves

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        curves = {"fixed": self.fixed.to_dict(), "scheduled": self.scheduled.to_dict()}
        return {**asdict(self), **curves}


@dataclass(frozen=True)
class SplitPool:
    """One of two pools by input length; None: no number of replicas is likely enough."""

    gpu_profile_id: str | None
    replicas: int | None


@dataclass(frozen=True)
class Split:
    """Two pools, for short and for long inputs, beside one pool for all."""

    tokens: int
    """The longest input of the first pool."""
    usd_per_hour: float | None
    """Of both; None: one of them has no number of replicas that is likely enough."""
    probability_met: float | None
    short: SplitPool
    long: SplitPool

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PolicyCost:
    """What a way to add and remove replicas costs and attains."""

    policy: str
    replica_hours: float
    n_windows_missed: int
    usd: float
    gpu_hours: float
    attainment: float
    """Share of the windows that meet the SLO."""
    replica_hours_lo: float | None = None
    """Range over other draws of law and traffic; None: there are none."""
    replica_hours_hi: float | None = None
    attainment_lo: float | None = None
    attainment_hi: float | None = None


@dataclass(frozen=True)
class WorstMinute:
    """A minute with many requests beyond a limit under a policy."""

    start_s: float
    n_requests: int
    n_beyond: int
    ordered: int
    """Replicas that are ordered, those that start included."""
    ready: int
    why: str
    """`starting` (replicas are), `most` (the policy has no more), `unasked` (it asks for none)."""


@dataclass(frozen=True)
class PolicyTimeline:
    """Replicas and results over time under a policy."""

    time_s: Sequence[float]
    ordered: Sequence[float]
    ready: Sequence[float]
    windows: WindowCurves

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        steps = {"time_s": self.time_s, "ordered": self.ordered, "ready": self.ready}
        return {**steps, **self.windows.to_dict()}


@dataclass(frozen=True, kw_only=True)
class ScalingComparison:
    """Replicas that stay, a schedule, policies and foresight under the same traffic."""

    policies: Sequence[PolicyCost]
    n_windows: int
    initial: int
    """Replicas that a reactive policy starts with."""
    manifest: Mapping[str, Any] | None
    """A ScaledObject of the tuned policy; None: none is tuned, or it attains too little."""
    asked_attainment: float | None
    worst: Sequence[WorstMinute]
    """Under the policy, the tuned one if there is one."""
    timeline: PolicyTimeline
    n_gpus: int
    """Of a replica."""

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        return {
            "policies": [asdict(cost) for cost in self.policies],
            "n_windows": self.n_windows,
            "initial": self.initial,
            "manifest": self.manifest,
            "asked_attainment": self.asked_attainment,
            "worst": [asdict(minute) for minute in self.worst],
            "timeline": self.timeline.to_dict(),
            "n_gpus": self.n_gpus,
        }


@dataclass(frozen=True, kw_only=True)
class CapacityFindings:
    """The results of the chosen replicas, and what would change them."""

    fixed: WindowsSummary
    neighbours: Sequence[Neighbour]
    failure: ReplicaFailure
    growth: Growth
    schedule: Schedule
    timeline: TrafficTimeline
    scaling: ScalingComparison | None = None
    """None: no policy is asked about; so are the next two."""
    split: Split | None = None
    pools: PoolsOption | None = None
    are_pools_asked: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return its entries in an answer."""
        facts: dict[str, Any] = {
            "fixed": asdict(self.fixed),
            "neighbours": [neighbour.to_dict() for neighbour in self.neighbours],
            "failure": self.failure.to_dict(),
            "growth": self.growth.to_dict(),
            "schedule": self.schedule.to_dict(),
            "timeline": self.timeline.to_dict(),
        }
        if self.scaling is not None:
            facts["scaling"] = self.scaling.to_dict()
        if self.split is not None:
            facts["split"] = self.split.to_dict()
        if self.are_pools_asked:
            facts["disaggregated"] = self.pools and self.pools.to_dict()
        return facts


@dataclass(frozen=True, kw_only=True)
class CapacityAnswer(Answer):
    """What `sextant capacity` answers."""

    alternatives: Sequence[CapacityOutcome]
    slo: SLO
    target: Target
    requests: RequestStream
    """What arrives, in the likeliest draw."""
    findings: CapacityFindings | None
    """None: no number of replicas is likely enough on any GPU profile."""

    @property
    def best(self) -> CapacityOutcome:
        """The cheapest GPU profile, or the likeliest where none is an option."""
        return self.alternatives[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        slo = self.slo.facts() | self.target.facts()
        facts = {
            **self.shared_facts(slo, None, ()),
            "rate_at_slo_rps": self.best.rate_at_slo_rps if self.findings else None,
            "demand": self.requests.facts(),
            **(self.findings.to_dict() if self.findings else {}),
        }
        return facts | ({"api": self.api.to_dict()} if self.api else {})

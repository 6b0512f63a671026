"""The answer of `sextant capacity`: types, whose fields are the keys of its JSON (`facts_of`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from sextant.answer.answer import Answer
from sextant.answer.certainty import Certainty
from sextant.answer.drafting import BestDraft
from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption
from sextant.capacity.manifests import RayConfig, ScaledObject
from sextant.decide.replica_sizing import Sizing
from sextant.decide.windows import Judged, Target
from sextant.deploy.deployment import ScalingSpec
from sextant.facts.engine import DEFAULT_ENGINE
from sextant.facts.slo import SLO
from sextant.facts.startup import Startup
from sextant.workload.part import StreamPart
from sextant.workload.requests import RequestStream

_FLAT = {"is_flat": True}
"""Marks a field whose own fields stand in the JSON in its place."""
_OPTIONAL = {"is_optional": True}
"""Marks a field that the JSON lacks where it is None."""


def facts_of(value: Any) -> Any:
    """Return a part of an answer for the JSON: a record becomes its fields, in their order."""
    match value:
        case Startup():
            return value.facts()
        case ScaledObject() | RayConfig():
            return value.to_dict()
        case list() | tuple():
            return [facts_of(item) for item in value]
        case _ if not is_dataclass(value):
            return value

    facts: dict[str, Any] = {}
    for column in fields(value):
        part = facts_of(getattr(value, column.name))
        if column.metadata == _FLAT:
            facts |= part or {}
        elif part is not None or column.metadata != _OPTIONAL:
            facts[column.name] = part
    return facts


@dataclass(frozen=True, kw_only=True)
class AloneResults:
    """The results if each request were alone on a replica: no number of replicas does better."""

    n_refused: int | None = None
    """Requests that fail even when alone."""
    refused_share: float | None = None
    """Largest share of the requests of a window that fail even when alone."""
    alone_limit: str | None = None
    """The metric whose latency comes nearest to its limit, or breaks it most."""
    alone_ratio: float | None = None
    """The latency of that metric over its limit."""


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
    """Mean rate of this traffic, per replica, at which the replicas just meet the SLO."""
    binds: str | None = None
    """What keeps a replica from more: `limits`, `compute`, `kv_cache` or `batch`."""
    kv_tokens: int | None = None
    reason: str | None = None
    """Why the LLM does not fit."""
    alone: AloneResults = field(default_factory=AloneResults, metadata=_FLAT)

    @classmethod
    def of(cls, sizing: Sizing, kv_tokens: int, *, is_gpu_measured: bool) -> "CapacityOutcome":
        """Return what a GPU profile needs, with `kv_tokens` in the KV cache of a replica."""
        low = None
        high = None
        if len(sizing.needs):
            ends = np.quantile(sizing.needs, [0.05, 0.95], method="inverted_cdf")
            low, high = (int(end) if np.isfinite(end) else None for end in ends)
        worst = max(sizing.alone, key=sizing.alone.__getitem__, default=None)
        return cls(
            gpu_profile_id=sizing.server.profile.gpu_profile_id,
            status=sizing.status,
            is_gpu_measured=is_gpu_measured,
            replicas=sizing.replicas,
            usd_per_hour=sizing.usd_per_hour,
            probability_met=sizing.replicas and sizing.probability(sizing.replicas),
            replicas_lo=low,
            replicas_hi=high,
            rate_at_slo_rps=None if sizing.rate_rps == np.inf else sizing.rate_rps,
            binds=sizing.binds,
            kv_tokens=kv_tokens,
            alone=AloneResults(
                n_refused=sizing.n_failed_alone,
                refused_share=sizing.failed_share_alone,
                alone_limit=worst,
                alone_ratio=sizing.alone.get(worst or ""),
            ),
        )

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "CapacityOutcome":
        """Return the outcome of a row of table `capacity`, which lacks some columns."""
        alone, outcome = (
            {column.name: row[column.name] for column in fields(record) if column.name in row}
            for record in (AloneResults, cls)
        )
        return cls(**outcome, alone=AloneResults(**alone))

    @property
    def option(self) -> Option:
        """Its replicas as an option; every field is None where no number of replicas is enough."""
        if not self.replicas:
            return Option()
        return Option(
            self.gpu_profile_id, self.replicas, None, self.usd_per_hour, self.probability_met
        )

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return dict(facts_of(self))


@dataclass(frozen=True)
class WindowsSummary:
    """How many windows a number of replicas misses, and by how much."""

    n_windows: int
    """Windows that were simulated: of a long trace the chosen ones (`StreamPart`)."""
    n_windows_missed: int
    failed_fraction: float
    worst_ratio: float
    """The largest latency over its limit in any window."""
    worst_limit: str | None

    @classmethod
    def of(cls, judged: Judged, target: Target, part: StreamPart | None) -> "WindowsSummary":
        """Summarise the windows of a simulation, of a long trace those of its part."""
        if part is not None:
            judged = judged.at(part.windows)
        ratios = judged.worst_ratio(target)
        return cls(
            n_windows=len(judged.start_s),
            n_windows_missed=judged.n_missed,
            failed_fraction=float(judged.n_failed.sum() / int(judged.n_requests.sum())),
            worst_ratio=max(ratios.values(), default=0.0),
            worst_limit=max(ratios, key=ratios.__getitem__, default=None),
        )


@dataclass(frozen=True)
class Neighbour:
    """The results of another number of replicas."""

    replicas: int
    usd_per_hour: float
    probability_met: float | None
    windows: WindowsSummary = field(metadata=_FLAT)


@dataclass(frozen=True)
class ReplicaFailure:
    """The results when one replica fails in the busiest minute, and is back later."""

    at_s: float
    back_s: float
    windows: WindowsSummary = field(metadata=_FLAT)


@dataclass(frozen=True)
class Growth:
    """The results with more traffic, and the replicas that it needs."""

    factor: float
    replicas_needed: int | None
    """None: no number of replicas is enough."""
    usd_per_hour: float | None
    windows: WindowsSummary = field(metadata=_FLAT)


@dataclass(frozen=True)
class Slot:
    """A slot of a schedule, e.g. an hour of the day."""

    slot: str
    """Its name."""
    replicas: int | None
    """None: of a long trace, nothing of it was simulated."""
    draft: BestDraft | None = field(default=None, metadata=_FLAT)
    """What speculation is worth in it; None: it is not asked about."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Replicas by slot of time, beside replicas that stay."""

    replicas: Sequence[int | None]
    """By slot of the traffic's time; None: neither it nor another one of its name was simulated."""
    by_slot: Sequence[Slot]
    """One per name. Slots of one name, e.g. an hour of all days, have the same replicas."""
    replica_hours: float
    """Starts included; slots that were not simulated have the replicas that stay."""
    fixed_replica_hours: float
    """Of the replicas that stay."""
    saved: float
    """Share of the replica hours that the schedule saves."""
    n_windows_missed: int
    slot_s: float
    least: int
    """Replicas at any time."""
    startup: Startup = field(metadata=_FLAT)
    usd_per_hour_saved: float
    """On average."""
    drafting: BestDraft | None = field(default=None, metadata=_OPTIONAL)
    """What speculation is worth at the busiest time; None: it is not asked about."""

    @property
    def counts(self) -> list[int]:
        """Replicas of the slots that were simulated."""
        return [count for count in self.replicas if count is not None]


@dataclass(frozen=True)
class WindowCurves:
    """Latencies and failures by window, for a figure; None where a window has none."""

    start_s: Sequence[float]
    n_requests: Sequence[int]
    is_met: Sequence[bool | None]
    """None: the window was not simulated."""
    failed_fraction: Sequence[float | None]
    latencies_ms: Mapping[str, Sequence[float | None]] = field(metadata=_FLAT)
    """By metric and unit, e.g. `ttft_ms`."""

    @classmethod
    def of(cls, judged: Judged, part: StreamPart | None = None) -> "WindowCurves":
        """Return the curves of the windows, of a long trace those of its part."""
        n_requests = judged.n_requests
        is_met: list[bool | None] = judged.is_met.tolist()
        if part is not None:
            chosen = {*part.windows.tolist()}
            is_met = [met if window in chosen else None for window, met in enumerate(is_met)]
            n_requests = np.where([met is not None for met in is_met], n_requests, 0)
        failed = np.where(n_requests, judged.n_failed / np.maximum(n_requests, 1), np.nan)
        failed_fraction, *latencies_ms = (
            [
                float(value) if n and not np.isnan(value) else None
                for n, value in zip(n_requests, values, strict=True)
            ]
            for values in (failed, *judged.latencies_ms.values())
        )
        columns = (f"{metric}_ms" for metric in judged.latencies_ms)
        return cls(
            judged.start_s.tolist(),
            n_requests.tolist(),
            is_met,
            failed_fraction,
            dict(zip(columns, latencies_ms, strict=True)),
        )


@dataclass(frozen=True, kw_only=True)
class TrafficTimeline:
    """Traffic, replicas and results over time."""

    bucket_s: int
    request_rate_rps: Sequence[float]
    """By bucket, of all requests."""
    window_s: float
    replicas: int
    slot_s: float
    scheduled_replicas: Sequence[int | None]
    """By slot; None: not simulated."""
    fixed: WindowCurves
    scheduled: WindowCurves

    @classmethod
    def of(
        cls,
        requests: RequestStream,
        replicas: int,
        schedule: Schedule,
        fixed: Judged,
        scheduled: Judged,
        window_s: float | None,
    ) -> "TrafficTimeline":
        """Return traffic, replicas and results over time.

        Args:
            requests: what arrives.
            replicas: those that stay.
            schedule: replicas by slot.
            fixed, scheduled: results by window with each.
            window_s: of the SLO; None is the whole time.
        """
        bucket_s, rate_rps = requests.measures().rates
        return cls(
            bucket_s=bucket_s,
            request_rate_rps=rate_rps.tolist(),
            window_s=window_s or requests.duration_s,
            replicas=replicas,
            slot_s=schedule.slot_s,
            scheduled_replicas=schedule.replicas,
            fixed=WindowCurves.of(fixed, requests.part),
            scheduled=WindowCurves.of(scheduled, requests.part),
        )


@dataclass(frozen=True)
class SplitPool:
    """One of two pools by input length; None: no number of replicas is likely enough."""

    gpu_profile_id: str | None
    replicas: int | None

    @classmethod
    def of(cls, sizing: Sizing | None) -> "SplitPool":
        """Return the pool of a sizing."""
        if sizing is None:
            return cls(None, None)
        return cls(sizing.server.profile.gpu_profile_id, sizing.replicas)


@dataclass(frozen=True)
class Split:
    """Two pools, for short and for long inputs, beside one pool for all."""

    tokens: int
    """The longest input of the pool `short`."""
    usd_per_hour: float | None
    """Of both pools; None: for one of them no number of replicas is likely enough."""
    probability_met: float | None
    short: SplitPool
    long: SplitPool


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
    """`starting` (replicas start), `most` (the policy orders no more), `unasked` (it asks for no
    more)."""


@dataclass(frozen=True)
class PolicyTimeline:
    """Replicas and results over time under a policy."""

    time_s: Sequence[float]
    ordered: Sequence[float]
    ready: Sequence[float]
    windows: WindowCurves = field(metadata=_FLAT)


@dataclass(frozen=True, kw_only=True)
class ScalingComparison:
    """Replicas that stay, a schedule, policies and foresight under the same traffic."""

    policies: Sequence[PolicyCost]
    n_windows: int
    initial: int
    """Replicas that a reactive policy starts with."""
    manifest: ScaledObject | RayConfig | None
    """The tuned policy; None: none is tuned, or it attains too little."""
    asked_attainment: float | None
    worst: Sequence[WorstMinute]
    """Under the policy; under the tuned one where one is tuned."""
    timeline: PolicyTimeline
    n_gpus: int
    """Of a replica."""


@dataclass(frozen=True, kw_only=True)
class CapacityFindings:
    """The results of the chosen replicas, and what would change them."""

    fixed: WindowsSummary
    neighbours: Sequence[Neighbour]
    failure: ReplicaFailure
    growth: Growth
    schedule: Schedule
    timeline: TrafficTimeline
    scaling: ScalingComparison | None = field(default=None, metadata=_OPTIONAL)
    """None: no policy is asked about."""
    split: Split | None = field(default=None, metadata=_OPTIONAL)
    """None: two pools by input length are not asked about."""


@dataclass(frozen=True, kw_only=True)
class CapacityAnswer(Answer):
    """What `sextant capacity` answers."""

    alternatives: Sequence[CapacityOutcome]
    frontier: Sequence[Option]
    """Options that no cheaper one matches in probability, cheapest first; none without draws."""
    certainty: Certainty | None
    """What certainty costs; None: no option is fairly sure."""
    slo: SLO
    target: Target
    requests: RequestStream
    """What arrives, in the likeliest draw."""
    findings: CapacityFindings | None
    """None: no number of replicas is likely enough on any GPU profile."""
    are_pools_asked: bool
    """Whether prefill and decode on separate replicas are asked about."""
    pools: PoolsOption | None
    """The cheapest two pools; None: they are not asked about, or none are likely enough."""

    @property
    def scaling(self) -> ScalingSpec | None:
        """The tuned policy, of the servers of this LLM alone; None: none is tuned, it is Ray's, or
        another engine than vLLM serves, whose metrics have other names.

        Without labels a query would count the requests of all LLMs.
        """
        comparison = self.findings.scaling if self.findings else None
        manifest = comparison.manifest if comparison else None
        settings = self.settings
        if not isinstance(manifest, ScaledObject) or settings is None:
            return None
        if settings.engine != DEFAULT_ENGINE:
            return None
        if settings.is_model_known:
            manifest = manifest.labelled(f'model_name="{settings.model}"')
        return ScalingSpec(spec=manifest.scaling())

    @property
    def separate_pools(self) -> PoolsOption | None:
        """The cheapest two pools, for prefill and decode apart; None: there are none."""
        return self.pools

    @property
    def best(self) -> CapacityOutcome:
        """The cheapest GPU profile, or the likeliest where none is an option."""
        return self.alternatives[0]

    @property
    def utilisation(self) -> float | None:
        """The mean rate over that at which the replicas just meet the SLO; None: not known."""
        if self.findings is None or not self.best.rate_at_slo_rps or not self.best.replicas:
            return None
        return self.requests.rate_rps / (self.best.replicas * self.best.rate_at_slo_rps)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        slo = self.slo.facts() | self.target.facts()
        facts = self.shared_facts(slo, None, ()) | {
            "rate_at_slo_rps": self.best.rate_at_slo_rps if self.findings else None,
            "utilisation": self.utilisation,
            "options": [option._asdict() for option in self.frontier],
            "certainty": self.certainty and self.certainty.to_dict(),
            "demand": self.requests.facts(),
        }
        if self.findings is not None:
            facts |= facts_of(self.findings)
            if self.are_pools_asked:
                facts["disaggregated"] = self.pools_facts()
        if self.api is not None:
            facts["api"] = self.api.to_dict()
        return facts

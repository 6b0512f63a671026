"""The answer of `sextant recommend`: types, and their JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

from sextant.answer.answer import Answer
from sextant.answer.certainty import Certainty
from sextant.answer.drafting import DraftGain
from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption
from sextant.base.files import jsonable
from sextant.decide.headroom import Headroom, NextBest, compare_options
from sextant.decide.measured_rates import RateBounds
from sextant.facts.gpu import GIB
from sextant.facts.llm import LLM
from sextant.facts.slo import METRICS, SLO
from sextant.law.calibration import Contradiction
from sextant.pages.blocks import Widget
from sextant.pages.words import number, under_load
from sextant.predict.predictor import INTERVAL


class Interval(NamedTuple):
    """A median and the ends of its 90% interval; infinite where the queue grows without end."""

    median: float
    lo: float
    hi: float

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the interval of draws, some of which may be infinite."""
        shares = [0.5, *INTERVAL]
        return cls(*np.quantile(values, shares, method="inverted_cdf").tolist())

    def end_words(self) -> str:
        """Return the interval's ends as text."""
        low = number(self.lo)
        return f"{low} to {number(self.hi)}" if math.isfinite(self.hi) else f"{low} or more"


@dataclass(frozen=True)
class FarMeasurement:
    """A measurement of the LLM far from the law, and what of it was measured."""

    contradiction: Contradiction
    metric: str  #: What was measured, as limits are named, or estimated: `ttft`, `itl`, `tpot`.
    basis: str | None
    """What it is estimated from, e.g. `median` or `E2E`; None: it was measured."""
    basis_ms: float | None
    """Value of that statistic, of TTFT or ITL, or of E2E."""
    request_rate_rps: float | None = None
    """Of a measured rate, whose users follow from it; None: users were measured."""

    @property
    def load_words(self) -> str:
        """The load that was measured, e.g. `with 8 users`."""
        users = self.contradiction.users if self.request_rate_rps is None else None
        return under_load(users, self.request_rate_rps)

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in the JSON."""
        more = {"basis": self.basis, "basis_ms": self.basis_ms}
        return {**self.contradiction._asdict(), **more, "request_rate_rps": self.request_rate_rps}


class UsersServed(NamedTuple):
    """The most users that a replica serves within the limits: median and 90% interval."""

    lo: int
    median: int
    hi: int


class WeighedRow(NamedTuple):
    """A row of `weigh` or `weigh_needed`: an option of one LLM, and what the draws say of it."""

    gpu_profile_id: str
    replicas: int
    users_per_replica: int | None
    usd_per_hour: float
    probability_met: float
    expected_utility: float
    devices: int
    users_lo: int | None
    """The most users that a replica of the profile serves: 5%, 50% and 95% quantile."""
    users_median: int | None
    users_hi: int | None
    load_median: float | None
    """Median of the most load that a replica carries; None, like users: replicas are simulated."""
    replicas_lo: float | None
    """Ends of the 90% interval of the simulated replicas; None: more than are tried."""
    replicas_hi: float | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the typed row of these columns; None for a column that it lacks."""
        columns: dict[str, Any] = {name: row.get(name) for name in cls._fields}
        return cls(**columns)

    @property
    def option(self) -> Option:
        """The option alone."""
        return Option(
            self.gpu_profile_id,
            self.replicas,
            self.users_per_replica,
            self.usd_per_hour,
            self.probability_met,
        )

    @property
    def users_served(self) -> UsersServed | None:
        """The most users that a replica serves; None where replicas are simulated."""
        if self.users_lo is None or self.users_median is None or self.users_hi is None:
            return None
        return UsersServed(int(self.users_lo), int(self.users_median), int(self.users_hi))


class EnergyPerToken(NamedTuple):
    """Joules per output token, of all devices: median and 90% interval; None: not known."""

    energy_j_per_token: float | None = None
    energy_lo_j_per_token: float | None = None
    energy_hi_j_per_token: float | None = None


NO_ENERGY = EnergyPerToken()


@dataclass(frozen=True)
class EnergyAnswer:
    """What a replica draws at its load, and what that rests on; its fields are its JSON."""

    energy_j_per_token: float
    """Joules per output token, of all devices: median and 90% interval."""
    energy_lo_j_per_token: float | None
    energy_hi_j_per_token: float | None
    wh_per_million_output_tokens: float
    n_llms: int
    """LLMs whose energy was measured."""
    sources: list[str]


@dataclass(frozen=True, kw_only=True)
class Misses:
    """By how much the latencies at the fewest users miss their limits."""

    fewest_users: int | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Latency over limit, by metric."""
    limit_ratio: float | None = None
    """The largest of these ratios."""

    @property
    def worst_metric(self) -> str:
        """The metric of the largest ratio; of equal ones the last in `METRICS`."""
        return worst_metric(self.ratios)

    def columns(self) -> dict[str, float | None]:
        """Return its columns in a row."""
        ratios = {f"{metric}_ratio": self.ratios.get(metric) for metric in METRICS}
        return {"fewest_users": self.fewest_users, **ratios, "limit_ratio": self.limit_ratio}


def worst_metric(ratios: Mapping[str, float | None]) -> str:
    """Return the metric of the largest ratio of latency and limit; of equal ones the last."""
    ratio_of = {m: ratio for m in reversed(METRICS) if (ratio := ratios.get(m)) is not None}
    return max(ratio_of, key=ratio_of.__getitem__)


@dataclass(frozen=True, kw_only=True)
class ProfileOutcome:
    """What serving the load takes on one GPU profile, or why it is no option."""

    option: Option
    status: str
    """`meets`, `unsure` (less likely than wanted), `too_slow`, `fails` (requests fail), or
    `does_not_fit`, `not_measured`, with a `reason`."""
    reason: str | None = None
    misses: Misses = field(default_factory=Misses)
    most_users_tried: int | None = None

    @property
    def gpu_profile_id(self) -> str:
        """Its name."""
        return self.option.gpu_profile_id or ""

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all replicas; None: it is no option."""
        return self.option.usd_per_hour

    @property
    def probability_met(self) -> float | None:
        """Probability to meet the SLO; None: not known."""
        return self.option.probability_met


@dataclass(frozen=True, kw_only=True)
class MeasuredOutcome(ProfileOutcome):
    """A GPU profile as the LLM's own points judge it."""

    llm_id: str
    load_per_replica: float | None = None
    failed_share: float | None = None
    rates: RateBounds | None = None
    """What a replica bears of requests that came at measured rates; None: users were measured."""

    @property
    def is_gpu_measured(self) -> bool:
        """Points answer for the GPUs that they are of."""
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        return {
            "llm_id": self.llm_id,
            "gpu_profile_id": self.option.gpu_profile_id,
            "status": self.status,
            "users_per_replica": self.option.users_per_replica,
            "replicas": self.option.replicas,
            "usd_per_hour": self.option.usd_per_hour,
            **self.misses.columns(),
            "load_per_replica": self.load_per_replica,
            "failed_share": self.failed_share,
            "probability_met": self.option.probability_met,
            "most_users_tried": self.most_users_tried,
            "served_rps": self.rates and self.rates.served_rps,
            "missed_rps": self.rates and self.rates.missed_rps,
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class PredictedOutcome(ProfileOutcome):
    """A GPU profile as joint draws judge it."""

    is_gpu_measured: bool
    is_simulated: bool = False
    """Whether the replicas were sized by simulation, so that their number has an interval."""
    expected_utility: float | None = None
    users_served: UsersServed | None = None
    replicas_lo: float | None = None
    """Ends of the 90% interval of the replicas that are needed; None: more than are tried."""
    replicas_hi: float | None = None
    energy: EnergyPerToken = NO_ENERGY

    def to_dict(self) -> dict[str, Any]:
        """Return its row in the JSON."""
        users = self.users_served or (None, None, None)
        replicas = {"replicas_lo": self.replicas_lo, "replicas_hi": self.replicas_hi}
        return {
            **self.option._asdict(),
            "expected_utility": self.expected_utility,
            **dict(zip(("users_lo", "users_median", "users_hi"), users, strict=True)),
            **(replicas if self.is_simulated and self.status != "does_not_fit" else {}),
            **self.misses.columns(),
            "status": self.status,
            "reason": self.reason,
            "most_users_tried": self.most_users_tried,
            "is_gpu_measured": self.is_gpu_measured,
            **self.energy._asdict(),
        }


@dataclass(frozen=True, kw_only=True)
class ReplicaForecast:
    """What is expected of a replica of the recommended deployment."""

    users: int
    latencies_ms: Mapping[str, Interval]
    """By metric: of each limit, and nTTFT and ITL where they were drawn."""
    ratios: Mapping[str, float]
    """Median over limit, by metric."""
    requests_per_s: float
    binding_limit: str
    load: float
    """The load of the replica, in the SLO's unit."""
    load_median: float
    """The most load that it carries within the limits, the median of the draws."""
    users_served: UsersServed | None = None
    most_users_tried: int | None = None
    checked_at_users: int | None = None
    """Number of users for which the probability holds; None: the asked load itself."""

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer."""
        latencies_ms: dict[str, float] = {}
        for metric, interval in self.latencies_ms.items():
            latencies_ms |= {
                f"{metric}_ms": interval.median,
                f"{metric}_lo_ms": interval.lo,
                f"{metric}_hi_ms": interval.hi,
            }
        users_served = {}
        if self.users_served is not None:
            users_served = {f"users_{end}": n for end, n in self.users_served._asdict().items()}
            users_served |= {"most_users_tried": self.most_users_tried}
        return {
            "users": self.users,
            **jsonable(latencies_ms),  # where some draws saturate, the end is infinite
            **{f"{metric}_ratio": ratio for metric, ratio in self.ratios.items()},
            "requests_per_s": self.requests_per_s,
            "binding_limit": self.binding_limit,
            **users_served,
            "load": self.load,
            "load_median": self.load_median,
            "checked_at_users": self.checked_at_users,
        }


@dataclass(frozen=True)
class TokenCost:
    """What tokens of the recommended deployment cost at its load."""

    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    split: str
    """What the price is split by: `time` of prefill and decode, or `tokens`."""
    prefill_share: float
    requests_per_s: float
    utilisation: float | None
    """The load over the most that the replicas carry within the limits, at median latencies."""


@dataclass(frozen=True)
class WayOption:
    """An option for another way to serve the LLM."""

    option: Option
    way: str
    risk: str

    @property
    def usd_per_hour(self) -> float:
        """Its price."""
        return self.option.usd_per_hour or 0.0


@dataclass(frozen=True)
class NearestMiss:
    """The option that is most likely to meet the SLO where none is likely enough."""

    option: Option
    ratios: Mapping[str, float]
    """Median latency over its limit at the option's load, by metric."""
    latencies_ms: Mapping[str, float]
    binding_limit: str
    fair_factor: float
    """Factor on all limits with which the probability is `FAIR`; infinite: none is enough."""
    safe_factor: float
    """Factor on all limits with which the probability is `SAFE`; infinite: none is enough."""


@dataclass(frozen=True)
class Change:
    """What would be recommended for another load, or other limits."""

    name: str
    option: Option


@dataclass(frozen=True)
class NearMeasurement:
    """A measured LLM that is similar to the asked one on the recommended GPU profile, or is it."""

    llm_id: str
    gpu_profile_id: str
    weights_gib: float
    precision: str
    engine: str | None
    engine_version: str | None
    execution: str
    is_executed_alike: bool
    users_per_replica: int
    """The most users that were served within the limits."""
    most_users_tried: int
    input_tokens: float
    output_tokens: float


@dataclass(frozen=True, kw_only=True)
class Recommendation(Answer):
    """What `sextant recommend` answers."""

    slo: SLO
    llm: LLM
    headroom: Headroom | None
    widget: Callable[[], Widget | None] = field(default=lambda: None)
    """Returns the part of its page in which the question can be changed, if there is one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer: here what both kinds of recommendation have."""
        llm = self.llm
        headroom = self.headroom and self.headroom.to_dict()
        return {
            **self.shared_facts(self.slo.facts(), headroom, ()),
            "source": self.source.characterization.source,
            "slo_id": self.slo.slo_id,
            "predictor": self.basis,
            # Whether the SLO is met, and at which overspend: only measurements can tell.
            "is_success": None,
            "overspend": None,
            "llm": {
                "llm_type": llm.llm_type,
                "n_parameters": llm.n_parameters,
                "weights_gib": llm.weight_bytes / GIB,
                "kv_kib_per_token": llm.kv_bytes_per_token / 1024,
                "attention": llm.attention,
                "dtype": llm.dtype,
                "kv_dtype": llm.kv_dtype or llm.dtype,
                "weight_bits": llm.weight_bits or None,
            },
        }


@dataclass(frozen=True, kw_only=True)
class MeasuredRecommendation(Recommendation):
    """Replicas sized by the LLM's own points."""

    alternatives: Sequence[MeasuredOutcome]
    overspend: float | None = None
    """Price over that of the cheapest option that the points themselves allow, less 1; None with a
    risk, or without an option."""

    @property
    def nearest_miss(self) -> Option | None:
        """The likeliest option where none is likely enough; None: there is none."""
        unsure = [outcome.option for outcome in self.alternatives if outcome.status == "unsure"]
        if self.has_option or not unsure:
            return None
        return max(unsure, key=lambda option: option.probability_met or 0.0)

    @property
    def next_best(self) -> NextBest | None:
        """The cheapest option on another GPU profile; None: there is none, or none is chosen."""
        others = [
            outcome
            for outcome in self.alternatives
            if outcome.status == "meets" and outcome.gpu_profile_id != self.chosen.gpu_profile_id
        ]
        if not self.has_option or not others:
            return None
        cheapest = min(others, key=lambda outcome: outcome.usd_per_hour or 0.0)
        return compare_options(self.chosen._asdict(), cheapest.option._asdict())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        return {
            **super().to_dict(),
            # Without a risk the points themselves meet the SLO.
            "is_success": None if self.overspend is None else True,
            "overspend": self.overspend,
            "next_best": self.next_best and asdict(self.next_best),
            "api": self.api and self.api.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a prediction says beside the option to rent."""

    latency: ReplicaForecast | None
    cost: TokenCost | None
    energy: EnergyAnswer | None
    evidence: Sequence[NearMeasurement]
    frontier: Sequence[Option]
    """Options that no cheaper one matches in probability, cheapest first."""
    certainty: Certainty | None
    """What certainty costs; None: no option is fairly sure."""
    unmeasured: Sequence[Option]
    """The same on GPUs that nobody measured."""
    ways: Sequence[WayOption]
    drafting: Sequence[DraftGain]
    pools: PoolsOption | None
    nearest_miss: NearestMiss | None
    """Where nothing is recommended."""
    safest: Option | None
    """The cheapest option of probability `SAFE` or more, where the answer has less."""
    sensitivity: Sequence[Change]
    best_probe: str
    """GPU profile whose measurement would tell most."""


@dataclass(frozen=True, kw_only=True)
class PredictedRecommendation(Recommendation):
    """Replicas sized by joint draws of the latencies."""

    alternatives: Sequence[PredictedOutcome]
    decision: str
    execution: str | None
    """How the LLM is taken to be executed; None: the source does not say."""
    arrivals: str | None
    """`poisson` or `gamma` where a request rate is simulated."""
    has_probe: bool
    outside: Sequence[str]
    """In what the question lies outside of the measurements, one clause each."""
    contradictions: Sequence[FarMeasurement]
    """Measurements of the LLM far from the law."""
    findings: Findings

    @property
    def separate_pools(self) -> PoolsOption | None:
        """The cheapest two pools, for prefill and decode apart; None: there are none."""
        return self.findings.pools

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        findings = self.findings
        nearest_miss = None
        if (miss := findings.nearest_miss) is not None:
            nearest_miss = {
                **miss.option._asdict(),
                **{f"{metric}_ratio": ratio for metric, ratio in miss.ratios.items()},
                **{f"{metric}_ms": value_ms for metric, value_ms in miss.latencies_ms.items()},
                "binding_limit": miss.binding_limit,
                "fair_factor": miss.fair_factor,
                "safe_factor": miss.safe_factor,
            }
        llm_id = {"llm_id": self.llm_id}
        return {
            **super().to_dict(),
            "evidence": [asdict(measurement) for measurement in findings.evidence],
            **({"arrivals": self.arrivals} if self.arrivals else {}),
            "decision": self.decision,
            "execution": self.execution,
            "has_probe": self.has_probe,
            "options": [option._asdict() for option in findings.frontier],
            "certainty": findings.certainty and findings.certainty.to_dict(),
            "unmeasured": [option._asdict() for option in findings.unmeasured],
            "drafting": [gain.to_dict() for gain in findings.drafting],
            "ways": [
                {**way.option._asdict(), "way": way.way, "risk": way.risk} for way in findings.ways
            ],
            "disaggregated": self.pools_facts(),
            "nearest_miss": nearest_miss,
            "safest": findings.safest and {**llm_id, **findings.safest._asdict()},
            "latency": findings.latency and findings.latency.to_dict(),
            "cost": findings.cost and asdict(findings.cost),
            "api": self.api and self.api.to_dict(),
            "energy": findings.energy and asdict(findings.energy),
            "contradictions": [row.to_dict() for row in self.contradictions],
            "outside": [*self.outside],
            "sensitivity": [
                {"change": change.name, **llm_id, **change.option._asdict()}
                for change in findings.sensitivity
            ],
            "best_probe": findings.best_probe,
        }

"""The answer of `sextant rightsize`: types, whose fields are the keys of its JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from sextant.answer.answer import Answer
from sextant.answer.option import Option
from sextant.decide.decision import FAIR
from sextant.decide.windows import Target
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.facts.slo import SLO
from sextant.rightsize.question import Deployed
from sextant.trace.observed import Observed
from sextant.workload.requests import RequestStream


class Predicted(NamedTuple):
    """A latency by draws of the law; infinite where a draw is saturated."""

    median_ms: float
    low_ms: float
    """Ends of the interval that holds 90% of the draws."""
    high_ms: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A latency of a load: observed, and predicted by the law without and with calibration."""

    metric: str
    percentile: int | None
    """None: the mean."""
    limit_ms: float | None
    observed_ms: float | None
    """None: not observed."""
    observed_low_ms: float | None
    """Ends of the bucket that an observed percentile lies in; the value itself of a mean."""
    observed_high_ms: float | None
    uncalibrated: Predicted
    calibrated: Predicted


@dataclass(frozen=True, kw_only=True)
class LoadComparison:
    """A load at which the deployment was observed, with its latencies."""

    n_answered: int
    duration_s: float
    rate_rps: float
    replica_rps: float
    running: float | None
    """Requests in batches and queues on average, as read; None: not read."""
    n_readings: int
    """Of the running requests."""
    in_flight: float | None
    """The same by Little's law from rate and E2E; None: not observed."""
    input_tokens: float | None
    output_tokens: float | None
    comparisons: Sequence[Comparison]


@dataclass(frozen=True, kw_only=True)
class HourOutcome:
    """An hour, or a shorter slot, of the traffic on the present deployment."""

    start_s: float
    duration_s: float
    start: str
    """Date and time, or the time after the trace's start."""
    busiest_rps: float
    """Rate in its busiest window, the factor on the traffic included."""
    running: float | None
    observed_ms: dict[str, float]
    """Observed latencies at the percentiles of their limits, by metric."""
    is_observed_met: bool | None
    """Whether all of these are within their limits; None: none was observed."""
    probability_met: float
    """That the present replicas keep all limits at the busiest rate, calibrated."""
    uncalibrated_probability_met: float


@dataclass(frozen=True, kw_only=True)
class SizedByLaw:
    """What a GPU profile needs by one law."""

    status: str
    """As `Sizing.status`, or `does_not_fit`."""
    replicas: int | None = None
    usd_per_hour: float | None = None
    probability_met: float | None = None

    def option(self, gpu_profile_id: str) -> Option:
        """Return it as an option; all None where no number of replicas is enough."""
        if self.replicas is None:
            return Option()
        return Option(gpu_profile_id, self.replicas, None, self.usd_per_hour, self.probability_met)


@dataclass(frozen=True, kw_only=True)
class ProfileOutcome:
    """A GPU profile: what it needs without and with calibration, and what that saves."""

    gpu_profile_id: str
    is_gpu_measured: bool
    is_deployed: bool
    calibrated: SizedByLaw
    uncalibrated: SizedByLaw
    usd_per_month_saved: float | None = None
    """Beside the present deployment, of the calibrated replicas; below 0: they cost more."""
    reason: str | None = None
    """Why the LLM does not fit."""

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the calibrated replicas."""
        return self.calibrated.usd_per_hour

    @property
    def probability_met(self) -> float | None:
        """Probability of the calibrated replicas."""
        return self.calibrated.probability_met

    def to_dict(self) -> dict[str, Any]:
        """Return it for the JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Present:
    """The present deployment."""

    deployed: Deployed
    usd_per_hour: float
    probability_met: float | None
    """That it keeps the SLO in all windows, calibrated; None: the LLM does not fit, or no number is
    enough."""
    uncalibrated_probability_met: float | None
    loads: Sequence[LoadComparison]
    hours: Sequence[HourOutcome]

    @property
    def usd_per_month(self) -> float:
        """Its price for 730 hours."""
        return self.usd_per_hour * HOURS_PER_MONTH

    @property
    def hours_too_small(self) -> list[HourOutcome]:
        """The hours in which it is more likely than not to break a limit."""
        return [hour for hour in self.hours if hour.probability_met < FAIR]

    def to_dict(self) -> dict[str, Any]:
        """Return it for the JSON."""
        return {
            "replicas": self.deployed.replicas,
            "gpu_profile_id": self.deployed.gpu_profile_id,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_month": self.usd_per_month,
            "probability_met": self.probability_met,
            "uncalibrated_probability_met": self.uncalibrated_probability_met,
            "loads": [_facts_of_load(load) for load in self.loads],
            "hours": [asdict(hour) for hour in self.hours],
            "hours_too_small": len(self.hours_too_small),
        }


def _facts_of_load(load: LoadComparison) -> dict[str, Any]:
    comparisons = [
        {
            **asdict(comparison),
            "uncalibrated": comparison.uncalibrated._asdict(),
            "calibrated": comparison.calibrated._asdict(),
        }
        for comparison in load.comparisons
    ]
    return {**asdict(load), "comparisons": comparisons}


@dataclass(frozen=True, kw_only=True)
class Rightsizing(Answer):
    """What runs, what it reaches, and what would do. `chosen` is the cheapest calibrated option."""

    alternatives: Sequence[ProfileOutcome]
    """The cheapest first."""
    slo: SLO
    target: Target
    requests: RequestStream
    observed: Observed
    present: Present
    uncalibrated: Option
    """The option without calibration."""
    doubts: Sequence[str]
    """What does not fit together, e.g. latencies far from those predicted."""

    @property
    def same_profile(self) -> ProfileOutcome:
        """What the deployed GPU profile needs."""
        return next(outcome for outcome in self.alternatives if outcome.is_deployed)

    def usd_per_month_saved(self, option: Option) -> float | None:
        """Return what an option saves beside the present deployment; None: it is none."""
        if option.usd_per_hour is None:
            return None
        return (self.present.usd_per_hour - option.usd_per_hour) * HOURS_PER_MONTH

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value."""
        slo = {**self.slo.facts(), **self.target.facts()}
        return {
            **self.shared_facts(slo, None, []),
            "usd_per_month_saved": self.usd_per_month_saved(self.chosen),
            "uncalibrated": {
                **self.uncalibrated._asdict(),
                "usd_per_month_saved": self.usd_per_month_saved(self.uncalibrated),
            },
            "present": self.present.to_dict(),
            "traffic": self.requests.facts(),
            "doubts": [*self.doubts],
        }

"""Size what runs: the same traffic by the law as it is, and calibrated by what was observed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from sextant.answer.option import Option
from sextant.answer.words import moment_words
from sextant.ask.candidates import find_gpu_profile
from sextant.ask.case import read_case
from sextant.ask.laws import CaseLaws, find_laws
from sextant.ask.traffic import demand_notes
from sextant.base.errors import InputError
from sextant.decide.drawn_latencies import latencies_at
from sextant.decide.latency_surface import BorneRates, MeanRequest, ReplicaLaws
from sextant.decide.replica_sizing import Sizing, borne_of, size_profiles
from sextant.decide.replicas import SimulatedReplica, simulated_replica
from sextant.deploy.settings import settings_of
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.law.means import open_loop
from sextant.predict.predictor import INTERVAL
from sextant.rightsize.answer import (
    Comparison,
    HourOutcome,
    LoadComparison,
    Predicted,
    Present,
    ProfileOutcome,
    Rightsizing,
    SizedByLaw,
)
from sextant.rightsize.doubts import find_doubts, reading_notes
from sextant.rightsize.observations import (
    MEANS,
    ObservedPoint,
    observed_points,
    write_probe,
)
from sextant.rightsize.question import RightsizeQuestion
from sextant.simulate.server import StepLaw
from sextant.trace.observed import ObservedSlot
from sextant.workload.requests import RequestStream, steady_like

_FEWEST_OUTPUTS = 2.0
_EDGE_S = 1e-6


@dataclass(frozen=True)
class _SizedReplicas:
    """What each GPU profile needs, by one law."""

    asked: RightsizeQuestion
    laws: CaseLaws
    servers: Mapping[str, SimulatedReplica]
    sizings: Mapping[str, Sizing]
    borne: BorneRates | None
    """Of the deployed profile; None: it has no law."""

    @classmethod
    def of(cls, asked: RightsizeQuestion, *, is_calibrated: bool) -> "_SizedReplicas":
        """Size every candidate, as `sextant capacity` and `recommend --trace` do."""
        question = replace(asked.question, probe=asked.probe if is_calibrated else None)
        laws = find_laws(question, asked.settings, asked.n_draws)
        hit_rate = question.prefix_hit_rate
        servers = {
            profile_id: simulated_replica(laws.case.gpu_profiles[profile_id], replica, hit_rate)
            for profile_id, replica in laws.servers.items()
        }
        surface = laws.candidates.surface(steady_like(asked.traffic, question.seed), hit_rate)
        sizings = size_profiles(servers, asked.traffic, asked.target, 1 - asked.risk, surface)
        server = servers.get(asked.deployed.gpu_profile_id)
        borne = None
        if server is not None:
            borne = borne_of(server, asked.traffic, asked.target, surface)
        return cls(asked, laws, servers, sizings, borne)

    @property
    def present_probability(self) -> float | None:
        """The probability that the present replicas keep the SLO in all windows; None: unknown."""
        sizing = self.sizings.get(self.asked.deployed.gpu_profile_id)
        if sizing is None:
            return None
        if not len(sizing.needs):  # nothing was drawn, or no number of replicas is enough
            return None if sizing.status in ("meets", "unsure") else 0.0
        return sizing.probability(self.asked.deployed.replicas)

    def sized(self, profile_id: str) -> SizedByLaw:
        """Return what a GPU profile needs."""
        sizing = self.sizings.get(profile_id)
        if sizing is None:
            return SizedByLaw(status="does_not_fit")
        replicas = sizing.replicas
        probability = None if replicas is None else sizing.probability(replicas)
        return SizedByLaw(
            status=sizing.status,
            replicas=replicas,
            usd_per_hour=sizing.usd_per_hour,
            probability_met=probability,
        )

    def options(self) -> list[Option]:
        """Return the options, the cheapest first, then the likeliest."""
        options = [self.sized(name).option(name) for name in self.sizings]
        return sorted((it for it in options if it.replicas is not None), key=self.rank)

    def rank(self, option: Option) -> tuple[float, float, int, str]:
        """Return the order of options: the cheaper, the likelier, fewer devices first."""
        profile_id = str(option.gpu_profile_id)
        n_gpus = self.laws.case.gpu_profiles[profile_id].n_gpus
        probability = option.probability_met or 0.0
        devices = (option.replicas or 0) * n_gpus
        return option.usd_per_hour or 0.0, -probability, devices, profile_id

    @cached_property
    def deployed_laws(self) -> ReplicaLaws:
        """The laws of a replica that is deployed. InputError: there are none."""
        name = self.asked.deployed.gpu_profile_id
        laws = self.laws.servers.get(name)
        if laws is None:
            reason = self.laws.excluded.get(name, "no law of a step is known")
            fix = "correct --deployed or the LLM; as stated it cannot run there"
            problem = f"{name} cannot serve {self.laws.case.llm_id}: {reason}"
            raise InputError(problem, field="--deployed", fix=fix)
        return laws

    def means(self, point: ObservedPoint) -> dict[str, Predicted]:
        """Return the mean latencies of a load, by metric."""
        stated = self.laws.case.mean_lengths
        inputs = point.slot.input_tokens or stated["input_tokens"]
        outputs = max(point.slot.output_tokens or stated["output_tokens"], _FEWEST_OUTPUTS)
        request = MeanRequest(inputs, outputs, self.asked.question.prefix_hit_rate * inputs)
        replica = self.deployed_laws
        law = StepLaw(*replica.terms.T[:, :, None])
        rate_rps = np.array([[point.replica_rps]])
        limits = request.limits(replica.scheduler)
        means = open_loop(law, limits, request.load(), rate_rps)
        by_metric = {
            "ttft": means.ttft_ms,
            "itl": means.itl_ms,
            "tpot": means.itl_ms,
            "e2e": means.e2e_ms,
        }
        return {metric: _predicted(values[1:, 0]) for metric, values in by_metric.items()}

    def limited(self, rate_rps: float) -> dict[str, np.ndarray]:
        """Return the latencies of the limits that the present replicas give at a rate, by draw."""
        if self.borne is None:
            return {}
        drawn = latencies_at(self.borne, rate_rps, self.asked.deployed.replicas)
        return {name: values[1:] for name, values in drawn.limited_ms.items()}

    def probability_at(self, rate_rps: float) -> float:
        """Return the probability that the present replicas keep all limits at a rate."""
        limits = self.asked.target.limits
        is_met = [
            values <= limits[name].limit_ms for name, values in self.limited(rate_rps).items()
        ]
        return float(np.logical_and.reduce(is_met).mean()) if is_met else 0.0


def rightsize_deployment(asked: RightsizeQuestion) -> Rightsizing:
    """Return what the present deployment reaches, and which replicas would do.

    Raises:
        InputError: nothing was observed, an option is wrong, or the LLM cannot run on what is
            deployed.
    """
    asked = _with_deployed(asked)
    points = observed_points(asked.observed, asked.deployed)
    plain = _SizedReplicas.of(asked, is_calibrated=False)
    plain.deployed_laws  # noqa: B018  raises InputError where there is none
    calibrated = plain
    if points:
        write_probe(points, asked.deployed, asked.probe)
        calibrated = _SizedReplicas.of(asked, is_calibrated=True)

    case = calibrated.laws.case
    loads = [_compare_load(asked, point, plain, calibrated) for point in points]
    requests = asked.traffic.drawn(0)
    profile = case.gpu_profiles[asked.deployed.gpu_profile_id]
    present = Present(
        deployed=asked.deployed,
        usd_per_hour=round(asked.deployed.replicas * profile.usd_per_hour, 9),
        probability_met=calibrated.present_probability,
        uncalibrated_probability_met=plain.present_probability,
        loads=loads,
        hours=[_hour(asked, slot, requests, plain, calibrated) for slot in asked.observed.slots],
    )
    options = calibrated.options()
    plain_options = plain.options()
    return Rightsizing(
        llm_id=case.llm_id,
        basis="simulated",
        chosen=options[0] if options else Option(),
        alternatives=_outcomes(asked, present, plain, calibrated),
        risk=asked.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        settings_on=partial(settings_of, case, settings=asked.settings),
        warnings=[
            *case.failure_notes,
            *asked.notes,
            *reading_notes(asked, points),
            *calibrated.laws.warnings,
            *demand_notes(requests, None),
        ],
        serving=case.serving,
        slo=asked.question.slo,
        target=asked.target,
        requests=requests,
        observed=asked.observed,
        present=present,
        uncalibrated=plain_options[0] if plain_options else Option(),
        doubts=find_doubts(asked, loads),
    )


def _with_deployed(asked: RightsizeQuestion) -> RightsizeQuestion:
    """Return the question with the deployed GPU profile among the candidates."""
    case = read_case(asked.question)
    candidates = case.gpu_profiles
    name = asked.deployed.gpu_profile_id
    if name in candidates:
        return asked
    measured = case.source.characterization.profiles
    find_gpu_profile(name, {**measured, **candidates}, field="--deployed")
    question = replace(asked.question, gpu_profile_ids=(*candidates, name))
    return replace(asked, question=question)


def _outcomes(
    asked: RightsizeQuestion, present: Present, plain: _SizedReplicas, calibrated: _SizedReplicas
) -> list[ProfileOutcome]:
    """Return every GPU profile, the cheapest first, those that cannot serve last."""
    case = calibrated.laws.case
    outcomes = []
    for profile_id in case.gpu_profiles:
        sized = calibrated.sized(profile_id)
        saved = None
        if sized.usd_per_hour is not None:
            saved = (present.usd_per_hour - sized.usd_per_hour) * HOURS_PER_MONTH
        outcomes.append(
            ProfileOutcome(
                gpu_profile_id=profile_id,
                is_gpu_measured=case.is_gpu_measured(profile_id),
                is_deployed=profile_id == asked.deployed.gpu_profile_id,
                calibrated=sized,
                uncalibrated=plain.sized(profile_id),
                usd_per_month_saved=saved,
                reason=calibrated.laws.excluded.get(profile_id),
            )
        )

    def rank(outcome: ProfileOutcome) -> tuple[bool, tuple[float, float, int, str]]:
        name = outcome.gpu_profile_id
        option = outcome.calibrated.option(name)
        return option.replicas is None, calibrated.rank(option._replace(gpu_profile_id=name))

    return sorted(outcomes, key=rank)


def _compare_load(
    asked: RightsizeQuestion,
    point: ObservedPoint,
    plain: _SizedReplicas,
    calibrated: _SizedReplicas,
) -> LoadComparison:
    """Return the latencies of a load: the means that were observed, then the limits."""
    slot = point.slot
    plain_means = plain.means(point)
    calibrated_means = calibrated.means(point)
    comparisons = []
    for metric in MEANS:
        if (mean_ms := point.mean_ms(metric)) is not None:
            comparisons.append(
                Comparison(
                    metric=metric,
                    percentile=None,
                    limit_ms=None,
                    observed_ms=mean_ms,
                    observed_low_ms=mean_ms,
                    observed_high_ms=mean_ms,
                    uncalibrated=plain_means[metric],
                    calibrated=calibrated_means[metric],
                )
            )
    plain_ms = plain.limited(slot.rate_rps)
    calibrated_ms = calibrated.limited(slot.rate_rps)
    for metric, limit in asked.target.limits.items():
        histogram = slot.latencies_ms.get(metric)
        reached = histogram and histogram.quantile(limit.percentile / 100)
        comparisons.append(
            Comparison(
                metric=metric,
                percentile=limit.percentile,
                limit_ms=limit.limit_ms,
                observed_ms=reached.value if reached else None,
                observed_low_ms=reached.low if reached else None,
                observed_high_ms=reached.high if reached else None,
                uncalibrated=_predicted(plain_ms[metric]),
                calibrated=_predicted(calibrated_ms[metric]),
            )
        )
    return LoadComparison(
        n_answered=slot.n_answered,
        duration_s=slot.duration_s,
        rate_rps=slot.rate_rps,
        replica_rps=point.replica_rps,
        running=None if slot.running is None else slot.running + (slot.waiting or 0.0),
        n_readings=slot.n_readings,
        in_flight=point.in_flight,
        input_tokens=slot.input_tokens,
        output_tokens=slot.output_tokens,
        comparisons=comparisons,
    )


def _predicted(values_ms: np.ndarray) -> Predicted:
    """Return median and 90% interval of draws; NaN, a saturated draw, counts as infinite."""
    filled = np.where(np.isnan(values_ms), np.inf, values_ms)
    shares = [0.5, INTERVAL[0], INTERVAL[1]]
    return Predicted(*np.quantile(filled, shares, method="inverted_cdf").tolist())


def _hour(
    asked: RightsizeQuestion,
    slot: ObservedSlot,
    requests: RequestStream,
    plain: _SizedReplicas,
    calibrated: _SizedReplicas,
) -> HourOutcome:
    """Return an hour of the traffic on the present deployment."""
    first = int((slot.start_s + _EDGE_S) / asked.window_s)
    last = int((slot.start_s + slot.duration_s - _EDGE_S) / asked.window_s)
    busiest_rps = float(asked.window_rps[first : last + 1].max(initial=0.0))
    observed_ms = {}
    for metric, limit in asked.target.limits.items():
        if metric in slot.latencies_ms:
            quantile = slot.latencies_ms[metric].quantile(limit.percentile / 100)
            observed_ms[metric] = quantile.value
    limits = asked.target.limits
    is_met = [value <= limits[metric].limit_ms for metric, value in observed_ms.items()]
    return HourOutcome(
        start_s=slot.start_s,
        duration_s=slot.duration_s,
        start=moment_words(requests.origin.start_time, slot.start_s),
        busiest_rps=busiest_rps,
        running=slot.running,
        observed_ms=observed_ms,
        is_observed_met=all(is_met) if is_met else None,
        probability_met=calibrated.probability_at(busiest_rps) if busiest_rps else 1.0,
        uncalibrated_probability_met=plain.probability_at(busiest_rps) if busiest_rps else 1.0,
    )

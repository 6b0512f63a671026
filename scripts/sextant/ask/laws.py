"""The law of an engine step on each candidate, for simulations of one LLM."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.case import Case, read_case
from sextant.ask.caveats import outside_warning
from sextant.ask.forecast import MEDIANS, SEED, fit_medians, own_source_points, widening
from sextant.ask.own_laws import OwnMeasurements, latencies_ms
from sextant.ask.probe_laws import (
    LEAST_DRAWS,
    ProbedLoads,
    missed_notes,
    probed_loads,
    rate_measurements,
    scales_elsewhere,
)
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings, scheduler_of
from sextant.decide.latency_surface import LatencySurface, ReplicaLaws
from sextant.decide.sizing import ruled_out
from sextant.facts.gpu import GPUProfile, is_as_good, might
from sextant.law.means import MeanLoad
from sextant.law.roofline import Roofline
from sextant.points.frame import KEYS, KV_PRECISION, TARGETS
from sextant.simulate.server import NAMES, StepLaw
from sextant.workload.requests import SteadyTraffic

_UNMEASURED = "it was not measured there, and the law of a step on GPUs says nothing of cores"
DRAFTED_ITL = "With speculation several tokens come at once: ITL is the time per token, as TPOT."
_BATCH = 32
"""Requests that share a step where laws are compared."""
_TIMES = [number for number, name in enumerate(NAMES) if name.endswith("_ms")]
"""Columns of a law's terms that are times."""


class CandidateLaws(NamedTuple):
    """How replicas on GPU profiles work."""

    servers: dict[str, ReplicaLaws]
    """By candidate, where a law is known."""
    measured: dict[str, ReplicaLaws]
    """By measured GPU profile that the LLM fits on, whether it is a candidate or not."""
    unknown: dict[str, str]
    """Why the other candidates have no law."""

    def surface(self, traffic: SteadyTraffic, prefix_hit_rate: float) -> LatencySurface:
        """Return the latencies of requests like those of a traffic.

        It is the same whichever of the measured GPU profiles are candidates.
        """
        return LatencySurface(self.measured or self.servers, traffic, prefix_hit_rate)


@dataclass(frozen=True)
class CaseLaws:
    """How replicas of the LLM of a case work on each candidate."""

    case: Case
    model: Roofline
    """What the laws come from."""
    candidates: CandidateLaws
    excluded: Mapping[str, str]
    """Why the other GPU profiles have no law."""
    longest_tokens: int
    """Requests with more tokens, input and output, are refused."""
    warnings: list[str]

    @property
    def servers(self) -> Mapping[str, ReplicaLaws]:
        """By GPU profile, where one can serve the LLM and a law is known."""
        return self.candidates.servers


def find_laws(
    question: Question, settings: Settings, n_draws: int, *, need_prices: bool = True
) -> CaseLaws:
    """Fit the measurements that a question names, and return the laws of a step that follow.

    The question has the lengths of the requests; its limits play no part.

    Raises:
        InputError: an option is wrong, no profile can serve the LLM, or the measurements have no
            law of a step.
    """
    case = read_case(question, need_prices=need_prices)
    warnings = [
        *outside_warning(case.outside_clauses(), case.source),
        *case.notes,
        *case.assumed_notes(),
        *case.probe_notes(has_steps=True),
        *([DRAFTED_ITL] if case.question.speculative else []),
    ]
    model = fit_medians(case)
    candidates = candidate_laws(case, settings, n_draws, model)
    warnings += missed_notes(candidates.servers)
    excluded = {**case.excluded, **candidates.unknown}
    return CaseLaws(case, model, candidates, excluded, case.longest_served_tokens, warnings)


def candidate_laws(case: Case, settings: Settings, n_draws: int, model: Roofline) -> CandidateLaws:
    """Return the laws of a step on each candidate, and why the other candidates have none.

    The measured GPU profiles are drawn beside the candidates: a draw on a device says something of
    better devices, candidates or not.

    Args:
        case: the LLM, and how it is served.
        settings: of the scheduler.
        n_draws: draws beside the likeliest law.
        model: what `fit_medians` returns.

    Raises:
        InputError: the predictor, or the measured engines, have no law of a step.
    """
    # The law of a step is that of GPUs: cores have their own points alone.
    on_gpu = _on_gpu(case)
    servers = {}
    unknown = {}
    for profile_id in case.candidates:
        if profile_id in on_gpu:
            continue
        laws = _laws_of_points(case, profile_id, settings, n_draws)
        if laws is None:
            unknown[profile_id] = _UNMEASURED
        else:
            servers[profile_id] = laws
    if not on_gpu:
        return CandidateLaws(servers, {}, unknown)

    measured = {
        name: profile
        for name, profile in case.source.characterization.profiles.items()
        if profile.gpu.kind != "cpu"
    }
    longest = case.source.longest_request_tokens
    cannot_serve = ruled_out(
        case.llm,
        measured,
        longest,
        case.memory_utilization,
        case.serving.engine,
        case.question.data_parallel or 1,
        case.serving.usual_options,
    )
    for name in cannot_serve:
        del measured[name]
    on_gpus = _GPULaws.of(case, settings, model, {**measured, **on_gpu}).draw(n_draws)
    servers |= {name: on_gpus[name] for name in on_gpu}
    return CandidateLaws(servers, {name: on_gpus[name] for name in measured}, unknown)


Choose = Callable[[Mapping[str, ReplicaLaws]], Sequence[str]]
"""Chooses some of the GPU profiles by their likeliest laws."""


def chosen_laws(
    case: Case, settings: Settings, n_draws: int, model: Roofline, choose: Choose
) -> CandidateLaws:
    """Return the laws of the candidates on GPUs that are chosen by their likeliest laws.

    Other arguments as of `candidate_laws`.
    """
    laws = _GPULaws.of(case, settings, model, _on_gpu(case))
    return CandidateLaws(laws.at(choose(laws.draw(0))).draw(n_draws), {}, {})


def _on_gpu(case: Case) -> dict[str, GPUProfile]:
    """Return the candidates that are GPUs."""
    profiles = {name: case.gpu_profiles[name] for name in case.candidates}
    return {name: profile for name, profile in profiles.items() if profile.gpu.kind != "cpu"}


def _design(case: Case, model: Roofline, profiles: Mapping[str, GPUProfile]) -> pd.DataFrame:
    """Return the design of the model for the LLM of a case, one row per GPU profile."""
    keys = pd.DataFrame([(case.llm_id, name, 1) for name in profiles], columns=KEYS)
    # The cache saves prompt tokens of a simulation; the law is that of the tokens computed.
    return case.varied({"prefix_hit_rate": 0.0}).asked_rows(model, keys, profiles)


@dataclass(frozen=True)
class _GPULaws:
    """Draws the laws of a step of a case on GPU profiles."""

    case: Case
    settings: Settings
    model: Roofline
    profiles: Mapping[str, GPUProfile]
    rows: pd.DataFrame  #: The design of the model, one row per profile.
    points: pd.DataFrame  #: What the sources measured of the LLM (`own_source_points`).

    @classmethod
    def of(
        cls, case: Case, settings: Settings, model: Roofline, profiles: Mapping[str, GPUProfile]
    ) -> "_GPULaws":
        """Take the facts of the LLM on these GPU profiles."""
        rows = _design(case, model, profiles)
        every_profile = {**case.source.characterization.profiles, **profiles}
        points = own_source_points(case, MEDIANS, every_profile)
        return cls(case, settings, model, profiles, rows, points)

    def at(self, names: Sequence[str]) -> "_GPULaws":
        """Return some of the GPU profiles alone."""
        rows = self.rows[self.rows["gpu_profile_id"].isin(names)]
        profiles = {name: self.profiles[name] for name in rows["gpu_profile_id"]}
        return replace(self, profiles=profiles, rows=rows)

    def draw(self, n_draws: int) -> dict[str, ReplicaLaws]:
        """Return the likeliest law and draws of it on each GPU profile."""
        case = self.case
        is_drawn = self.points["gpu_profile_id"].isin([*self.profiles])
        points = self.points[is_drawn].reset_index(drop=True)
        # A measurement is compared with the intervals of the law, which take many draws.
        is_measured = case.probe is not None or len(points) > 0
        drawn = self._drawn(max(n_draws, LEAST_DRAWS) if is_measured else n_draws)
        probed = self._probed_loads(drawn)
        through_points = self._through(points, drawn)
        elsewhere = scales_elsewhere([*probed.values()], n_draws, case)
        measured_profiles = {*points["gpu_profile_id"], *probed}
        laws = {}
        for name, terms in through_points.items():
            loads = probed.get(name)
            likely = terms[: 1 + n_draws]
            # Where a source measured the LLM, its points say how much of a probe holds there.
            if name not in measured_profiles:
                likely = likely * elsewhere
            measured = rate_measurements(case, name)
            laws[name] = ReplicaLaws(drawn[name].scheduler, likely, measured)
            if loads is not None:
                fitted = loads.fitted(likely)
                missed = loads.missed_by(fitted)
                laws[name] = replace(laws[name], terms=fitted.values, missed=missed)
        return laws

    def _drawn(self, n_draws: int) -> dict[str, ReplicaLaws]:
        """Return laws as the fit has them, without regard to measurements of one profile."""
        case = self.case
        terms = self.model.step_laws(self.rows, n_draws, case.question.seed)
        terms[:, 1:, _TIMES] *= widening(case, n_draws)[:, None]
        drawn = dict(zip(self.profiles, terms, strict=True))
        coupled = _coupled(drawn, self.profiles, case.lengths[0])
        return {
            name: ReplicaLaws(scheduler_of(case, self.settings, profile), coupled[name])
            for name, profile in self.profiles.items()
        }

    def _through(
        self, points: pd.DataFrame, drawn: Mapping[str, ReplicaLaws]
    ) -> dict[str, np.ndarray]:
        """Return laws, (1 + draws, terms), that give what the sources measured of the LLM."""
        if points.empty:
            return {name: laws.terms for name, laws in drawn.items()}
        inputs, outputs = self.case.lengths[0]
        load = MeanLoad(inputs, max(outputs, 2.0))
        n_draws = next(iter(drawn.values())).n_draws
        at_points_ms = np.empty((1 + n_draws, len(points), len(TARGETS)))
        kept_in = points[KV_PRECISION].fillna(self.case.serving.kv_precision or "")
        for kv_precision, indices in points.groupby(kept_in).indices.items():
            measured = self._as_measured(str(kv_precision), drawn)
            at_points_ms[:, indices] = latencies_ms(measured, points.iloc[indices], load)
        return OwnMeasurements(points, at_points_ms, load, SEED).scaled(drawn)

    def _as_measured(
        self, kv_precision: str, drawn: Mapping[str, ReplicaLaws]
    ) -> Mapping[str, ReplicaLaws]:
        """Return the laws of servers without drafts, whose KV cache has a precision; "": as asked.

        `drawn` are those of the asked servers.
        """
        case = self.case.without_speculation()
        if kv_precision not in ("", case.serving.kv_precision):
            case = case.varied({"kv_dtype": kv_precision})
        if case is self.case:
            return drawn
        plain = replace(self, case=case, rows=_design(case, self.model, self.profiles))
        return plain._drawn(next(iter(drawn.values())).n_draws)

    def _probed_loads(self, drawn: Mapping[str, ReplicaLaws]) -> dict[str, ProbedLoads]:
        """Return what the asker measured of the LLM, by GPU profile; `drawn` are all laws."""
        probe = self.case.probe
        if probe is None:
            return {}
        rows = {str(name): part for name, part in probe.groupby("gpu_profile_id") if name in drawn}
        untold = drawn
        if rows and self.model.untold_ is not None:
            before = replace(self.at([*rows]), model=self.model.untold_)
            untold = before._drawn(next(iter(drawn.values())).n_draws)
        return {
            name: probed_loads(self.case, part, drawn[name], untold[name])
            for name, part in rows.items()
        }


def _coupled(
    laws: Mapping[str, np.ndarray], gpu_profiles: Mapping[str, GPUProfile], lengths: np.ndarray
) -> dict[str, np.ndarray]:
    """Return laws, (1 + draws, terms) of each GPU profile, ordered as the devices are.

    In no draw is a device slower, in proportion to its likeliest law, than a lesser device is. The
    law of a draw stays whole: it keeps its own ratio to the likeliest law, or takes the ratio of
    the lesser device, whichever takes less time for requests of these mean lengths in a batch.
    """
    inputs, outputs = lengths

    def request_ms(values: np.ndarray) -> Any:
        law = StepLaw(*values.T)
        prompt_ms = law.prefill_token_ms * inputs + law.prefill_pair_ms * inputs**2 / 2
        context = _BATCH * (inputs + outputs / 2)
        return prompt_ms + outputs / _BATCH * law.step_ms(0, _BATCH, context, 0)

    ratios: dict[str, np.ndarray] = {}
    for name in sorted(laws, key=lambda name: math.prod(might(gpu_profiles[name]))):
        likeliest = laws[name][:1]
        ratio = np.divide(laws[name], likeliest, out=np.ones_like(laws[name]), where=likeliest > 0)
        for other, other_ratio in ratios.items():
            if is_as_good(gpu_profiles[name], gpu_profiles[other]):
                is_less = request_ms(likeliest * other_ratio) < request_ms(likeliest * ratio)
                ratio = np.where(is_less[:, None], other_ratio, ratio)
        ratios[name] = ratio
    return {name: laws[name][:1] * ratio for name, ratio in ratios.items()}


def _laws_of_points(
    case: Case, profile_id: str, settings: Settings, n_draws: int
) -> ReplicaLaws | None:
    """Return the laws that give what was measured of the LLM there; None if nothing was."""
    from sextant.law.measured_server import calibrate, requests_of_points

    characterization = case.source.characterization
    points, tried = (
        table[(table["llm_id"] == case.llm_id) & (table["gpu_profile_id"] == profile_id)]
        for table in (characterization.points, characterization.feasibility)
    )
    batch_weights = tried["batch_weight_tokens"].dropna()
    if points.empty or batch_weights.empty:
        return None
    devices = case.gpu_profiles[profile_id].devices
    kv_tokens = int(batch_weights.max())
    scheduler = settings.scheduler(kv_tokens, case.longest_served_tokens, devices)
    calibrated = calibrate(requests_of_points(points), scheduler, n_draws, case.question.seed)
    return ReplicaLaws(scheduler, np.vstack([calibrated.law.array(), *calibrated.draws]))

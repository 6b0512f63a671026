"""A predictor that is fitted to the measurements, and its joint draws of an LLM's latencies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.candidates import find_gpu_profile
from sextant.ask.case import Case
from sextant.ask.caveats import estimates, failing_servers_notes
from sextant.ask.question import Question
from sextant.ask.user_percentiles import SIMULATED_USERS, UserPercentiles, latencies_to_simulate
from sextant.base.errors import InputError
from sextant.decide.decision import loads
from sextant.facts.answer_times import answer_ms, rate_of_users
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import precision_of
from sextant.facts.slo import METRICS, SLO, are_alike
from sextant.law.calibration import Calibration
from sextant.law.fact_rows import fact_rows
from sextant.law.fits import fit_or_restore
from sextant.law.plausible import impossible, set_aside_note
from sextant.law.roofline import Roofline, has_steps
from sextant.points import frame
from sextant.points.frame import (
    GRAPHS,
    KEYS,
    KV_PRECISION,
    LENGTHS,
    SETTINGS,
    TARGETS,
    FactTables,
    judged,
)
from sextant.predict.predictor import (
    INTERVAL,
    PREDICTOR,
    PREDICTORS,
    Draws,
    JointPredictor,
    TrainingRows,
    predictor_class,
)

SEED = 42
_BASES = [*frame.BASES, *(f"{name}_ms" for name in frame.BASES)]


@dataclass(frozen=True)
class Fitted:
    """A predictor that is fitted at an SLO's percentiles; one fit serves several cases."""

    model: JointPredictor
    latencies: pd.DataFrame
    """The measured points, with the latencies that the limits are compared with."""
    gpu_profiles: Mapping[str, GPUProfile]
    """All GPU profiles that points, probe and question name."""
    notes: tuple[str, ...] = ()  #: On points that the fit left out, one sentence each.
    simulates_users: bool = False
    """Whether percentiles of users are simulated, as most points have other statistics: the fit is
    that of `MEDIANS`. Else it is at the asked percentiles."""

    def percentile_notes(self, case: Case, slo: SLO) -> list[str]:
        """Return what percentiles of users' latencies come from where points lack them."""
        if self.simulates_users:
            return [SIMULATED_USERS]
        return estimates(case.source.characterization.points, slo)

    @property
    def has_steps(self) -> bool:
        """Whether the model tells the steps of servers apart."""
        return type(self.model) is Roofline and self.model.has_steps

    def forecast(self, case: Case, slo: SLO) -> "Forecast":
        """Return the latencies of the LLM of a case, through what was measured of it."""
        users = loads(slo, most_users=int(self.latencies["users"].max()))
        percentiles = self.percentiles(case, slo)
        points = _calibration_points(case, slo, self.gpu_profiles, percentiles)
        if points.empty:
            return Forecast(case, slo, self.model, None, users, percentiles)

        measured_case = case if case.probe is not None else _as_sources_measure(case)
        # Widened as the asked draws are: at a measured load nothing but the measurement counts.
        rows = measured_case.asked_rows(self.model, points, self.gpu_profiles)
        samples_ms = draw_latencies(self.model, measured_case, rows)
        untold = self.model.untold_
        untold_ms = draw_latencies(untold, measured_case, rows) if untold else None
        if percentiles is not None:
            factors = percentiles.factors(points)
            samples_ms = samples_ms * factors
            untold_ms = None if untold_ms is None else untold_ms * factors

        # Where E2E alone was measured both latencies are in the law's proportion.
        law_ms = np.median(samples_ms, axis=0)
        inputs, outputs, measured_ms = (points[name] for name in (*LENGTHS, "e2e_ms"))
        e2e_ms = answer_ms(law_ms[:, 0] * inputs, law_ms[:, 1], outputs)
        has_e2e_alone = measured_ms.notna() & points[TARGETS].isna().all(axis=1)
        scaled = pd.DataFrame(law_ms, points.index, TARGETS).mul(measured_ms / e2e_ms, axis=0)
        points = points.assign(**points[TARGETS].where(~has_e2e_alone, scaled))
        calibration = Calibration(_with_e2e_as_basis(points), samples_ms, SEED, untold_ms)
        return Forecast(case, slo, self.model, calibration, users, percentiles)

    def percentiles(self, case: Case, slo: SLO) -> UserPercentiles | None:
        """Return what turns the fit's latencies into the asked ones; None: it has them."""
        if not self.simulates_users or not isinstance(self.model, Roofline):
            return None
        simulated = latencies_to_simulate(case.trusted_points, slo)
        if simulated is None:
            return None
        gpu_profiles = {**self.gpu_profiles, **case.gpu_profiles}
        return UserPercentiles(case, self.model, simulated, gpu_profiles)


def _with_e2e_as_basis(points: pd.DataFrame) -> pd.DataFrame:
    """Return points whose latencies name the E2E of a probe that they follow from."""
    has_e2e = points["e2e_ms"].notna()
    if not has_e2e.any():
        return points
    sides = ("own_ttft_ms", "own_nttft_ms"), ("own_itl_ms", "own_tpot_ms")
    for basis, stated in zip(frame.BASES, sides, strict=True):
        follows = has_e2e & points[[*stated]].isna().all(axis=1)
        value_ms = points[f"{basis}_ms"].astype(float).where(~follows, points["e2e_ms"])
        name = points[basis].where(~follows, METRICS["e2e"])
        points = points.assign(**{basis: name, f"{basis}_ms": value_ms})
    return points


def make_predictor(question: Question, gpu_profiles: Mapping[str, GPUProfile]) -> JointPredictor:
    """Return the predictor that is asked for, not fitted yet.

    Raises:
        InputError: it does not draw samples, or a library that it needs is not installed.
    """
    model = None
    if question.predictor in PREDICTORS:
        model = predictor_class(question.predictor)(question.slo, gpu_profiles, question.seed)
    if not isinstance(model, JointPredictor):
        problem = f"{question.predictor} does not draw samples, so no probability is known"
        fix = f"use --predictor {PREDICTOR}; `sextant evaluate` judges the others"
        raise InputError(problem, field="--predictor", fix=fix)
    return model


def fit_predictor(model: JointPredictor, case: Case, slo: SLO) -> Fitted:
    """Fit a model to the measured LLMs at an SLO's percentiles, and to the probe if there is one.

    A point needs at least one of the two latencies.

    Raises:
        InputError: too few LLMs were measured, or the model does not know speculation.
    """
    training = training_at(model, case, slo)
    simulates_users = (
        type(model) is Roofline
        and has_steps(training.rows.X)
        and latencies_to_simulate(case.trusted_points, slo) is not None
    )
    if simulates_users and slo.percentiles != MEDIANS.percentiles:
        training = training_at(model, case, MEDIANS)
    gpu_profiles = {**case.source.characterization.profiles, **case.gpu_profiles}
    probed = _probed_rows(model, case, gpu_profiles)

    fitted = Fitted(model, training.latencies, gpu_profiles, tuple(training.notes), simulates_users)
    if type(model) is Roofline:
        fit_or_restore(model, training.rows, None)
        if probed is not None:
            references = probed.as_fitted(fitted.percentiles(case, slo))
            fit_or_restore(model, training.rows, references)
    else:
        model.fit(training.rows, probed.rows if probed else None)
    if case.serving.speculative and not fitted.has_steps:
        problem = "speculation is known of servers with CUDA graphs alone"
        fix = "leave it out, or use --predictor roofline --source archive:inferencex"
        raise InputError(problem, field="--speculative", fix=fix)
    return fitted


class _ProbedRows(NamedTuple):
    """What the asker measured, at the asked percentiles."""

    rows: TrainingRows
    is_at_rate: np.ndarray  #: Whether requests came at a rate, where no first wave is, (rows,).

    def as_fitted(self, percentiles: UserPercentiles | None) -> TrainingRows:
        """Return what load tests would have measured, as a model is fitted to them."""
        if percentiles is None:
            return self.rows
        factors = np.where(self.is_at_rate[:, None], 1.0, percentiles.factors(self.rows.X))
        return self.rows._replace(y=self.rows.y / factors)


def _probed_rows(
    model: JointPredictor, case: Case, gpu_profiles: dict[str, GPUProfile]
) -> _ProbedRows | None:
    """Return what the asker measured; None: nothing of both latencies.

    The GPU profiles of the probe join `gpu_profiles`.
    """
    if case.probe is None:
        return None
    for profile_id in case.probe["gpu_profile_id"].unique():
        gpu_profiles[profile_id] = find_gpu_profile(profile_id, gpu_profiles, field="--probe")
    parts = case.probe[case.probe[TARGETS].notna().any(axis=1) & case.probe["users"].notna()]
    if parts.empty:  # E2E alone was measured, or TTFT alone at rates
        return None
    parts = parts.astype({"users": "int64"})
    rows = TrainingRows(case.asked_rows(model, parts, gpu_profiles), parts[TARGETS])
    return _ProbedRows(rows, parts["request_rate_rps"].notna().to_numpy())


class Training(NamedTuple):
    """What a model is fitted to."""

    latencies: pd.DataFrame
    """The measured points, with the latencies that the limits are compared with."""
    rows: TrainingRows  #: Without points that cannot be, and those of failing servers.
    notes: list[str]  #: On points that are left out, a sentence each.


def training_at(model: JointPredictor, case: Case, slo: SLO) -> Training:
    """Return the measured points with latencies at an SLO's percentiles, and as training rows.

    Raises:
        InputError: too few LLMs were measured.
    """
    points = case.trusted_points
    latencies = frame.at_percentile(points, slo.percentiles, slo.first_token)
    latencies[TARGETS] = latencies[TARGETS].where(latencies[TARGETS] > 0)
    is_measured = frame.is_usable(latencies)
    latencies = latencies[is_measured].astype({"users": "int64"}).reset_index(drop=True)
    n_llms = latencies["llm_id"].nunique()
    if n_llms < model.min_training_llms:
        problem = f"{n_llms} LLMs with points, of {model.min_training_llms} that are needed"
        if len(case.distrusted_points):
            problem += "; servers that failed even at the lightest load do not count"
        fix = "measure more LLMs, or add another --source, e.g. archive:inferencex"
        raise InputError(f"no prediction is possible ({problem})", fix=fix)

    gpu_profiles = {**case.source.characterization.profiles, **case.gpu_profiles}
    X = case.training_rows(model, latencies, gpu_profiles)
    rows = TrainingRows(X, latencies[TARGETS])
    distrusted = case.distrusted_points
    notes = failing_servers_notes(distrusted[distrusted["llm_id"] != case.llm_id])
    if type(model) is not Roofline:
        return Training(latencies, rows, notes)
    # By medians, whatever the percentiles of this question.
    medians = frame.at_percentile(points, MEDIANS.percentiles, slo.first_token)[is_measured]
    is_possible = ~impossible(X, medians[TARGETS].to_numpy(float))
    possible = TrainingRows(X[is_possible], latencies.loc[is_possible, TARGETS])
    kept = TrainingRows(*(part.reset_index(drop=True) for part in possible))
    notes += set_aside_note(X.loc[~is_possible, "llm_id"])
    return Training(latencies, kept, notes)


@dataclass(frozen=True)
class Forecast:
    """What a fitted model says of the LLM of a case."""

    case: Case
    slo: SLO
    model: JointPredictor
    calibration: Calibration | None
    """Measurements of the LLM with requests like the asked ones; None: there are none."""
    users: Sequence[int]
    """Numbers of users that a replica may get."""
    percentiles: UserPercentiles | None = None
    """What turns the model's latencies into the asked ones; None: it has them."""

    def of_case(self, case: Case) -> "Forecast":
        """Return the same forecast for a case that differs in its candidates alone."""
        return replace(self, case=case)

    @cached_property
    def draws(self) -> Draws:
        """Joint draws on every candidate at these numbers of users."""
        return self.draw(self.case.rows_at(self.model, [*self.users]))

    def draw(self, X: pd.DataFrame) -> Draws:
        """Draw latencies for rows of a design matrix, through what was measured of the LLM."""
        keys = X[KEYS].astype({"users": "int64"}).assign(**self.case.mean_lengths)
        samples_ms = draw_latencies(self.model, self.case, X) * self.factors(X)
        if self.calibration:
            samples_ms = self.calibration.corrected(keys, samples_ms)
        return Draws(keys, samples_ms)

    @property
    def fitted_percentiles(self) -> tuple[int, int]:
        """Percentiles of first and later tokens that the model is fitted to."""
        return self.slo.percentiles if self.percentiles is None else MEDIANS.percentiles

    def factors(self, X: pd.DataFrame) -> np.ndarray:
        """Return the asked latencies over those that the model is fitted to, (rows, 2)."""
        if self.percentiles is None:
            return np.ones((len(X), len(TARGETS)))
        return self.percentiles.factors(X)

    def means_ms(self, draws: Draws) -> np.ndarray:
        """Return draws of what the model is fitted to, (draws, rows, 2)."""
        return np.asarray(draws.samples_ms / self.factors(draws.X))

    def draws_for(self, slo: SLO) -> Draws:
        """Return the draws that decide on an SLO: none meets what was measured to break it."""
        if not self.calibration:
            return self.draws
        capped = self.calibration.capped(self.draws.X, self.draws.samples_ms, slo)
        return self.draws._replace(samples_ms=capped)

    def draws_at(self, profile_id: str, users: int) -> Draws:
        """Return the draws of one load, taken from `draws` where it is among them."""
        X, samples_ms = self.draws
        is_load = ((X["gpu_profile_id"] == profile_id) & (X["users"] == users)).to_numpy()
        if is_load.any():
            return Draws(X[is_load], samples_ms[:, is_load])
        return self.draw(self.case.rows_at(self.model, [users], [profile_id]))

    def latencies_at(self, profile_id: str, users: int) -> pd.Series:
        """Return the medians and 90% intervals of the latencies at one load of a replica.

        They are `<latency>_ms, <latency>_lo_ms, <latency>_hi_ms` of nTTFT, ITL and all that has a
        limit, `<limit>_ratio` (median over limit), and `requests_per_s` by Little's law.
        """
        draws = self.draws_at(profile_id, users)
        lengths = self.case.lengths[0]
        row = draws.summary().iloc[0].to_dict()
        for name, values in self.slo.latencies(draws.samples_ms[:, 0], lengths).items():
            low, median, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]])
            row |= {f"{name}_ms": median, f"{name}_lo_ms": low, f"{name}_hi_ms": high}
            row[f"{name}_ratio"] = median / self.slo.limits[name].limit_ms
        first_ms, gap_ms = np.median(self.means_ms(draws)[:, 0], axis=0)
        e2e_ms = answer_ms(first_ms * lengths[0], gap_ms, lengths[1])
        return pd.Series(row | {"requests_per_s": rate_of_users(users, e2e_ms)})


def draw_latencies(model: JointPredictor, case: Case, X: pd.DataFrame) -> np.ndarray:
    """Return draws of nTTFT and ITL in ms, shape (draws, rows of `X`, 2).

    Where lengths lie beyond the measured ones, one random number moves all rows of a draw.
    """
    samples_ms = model.sample(X)
    return np.asarray(samples_ms * widening(case, len(samples_ms))[:, None, None])


def widening(case: Case, n_draws: int) -> np.ndarray:
    """Return the factors of all times in each draw, (draws,), 1 where lengths were measured."""
    if not case.widening_sd:
        return np.ones(n_draws)
    return np.exp(np.random.default_rng(SEED).normal(0, case.widening_sd, n_draws))


def _calibration_points(
    case: Case,
    slo: SLO,
    gpu_profiles: Mapping[str, GPUProfile],
    percentiles: UserPercentiles | None,
) -> pd.DataFrame:
    """Return the points of the LLM with requests like the asked ones, one per profile and load."""
    parts = [own_source_points(case, slo, gpu_profiles, percentiles)]
    if case.probe is not None:
        is_alike = are_alike(case.probe[LENGTHS].to_numpy(float), case.lengths)
        is_alike &= case.probe["users"].notna()
        asked = case.serving.columns()
        settings = {name: asked.get(name) for name in (*SETTINGS, KV_PRECISION)}
        parts.append(case.probe[is_alike].astype({"users": "int64"}).assign(**settings))
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame()
    return _one_per_load(pd.concat(parts, ignore_index=True), slo)


def own_source_points(
    case: Case,
    slo: SLO,
    gpu_profiles: Mapping[str, GPUProfile],
    percentiles: UserPercentiles | None = None,
) -> pd.DataFrame:
    """Return what the sources measured of the LLM with requests like the asked ones.

    One row per GPU profile and load, at the percentiles of an SLO, without points that cannot be.
    None beside a probe of a server that no source has: sources measure without drafts and without
    prompts that a cache holds. `percentiles` give those that points lack; without, a mean stands
    for a median.
    """
    points = _possible_points(case, gpu_profiles)
    if case.probe is not None and _as_sources_measure(case) is not case:
        points = points[:0]
    points = _of_alike_servers(points, case, gpu_profiles)
    if len(points):
        points = points if percentiles is None else percentiles.filled(points)
        points = _of_alike_requests(points, case, slo)
    if points.empty:
        return points
    stated = [name for name in points if name.startswith("own_")]
    # Of requests of other lengths TTFT and E2E follow from nTTFT and ITL.
    is_same = np.isclose(points[LENGTHS].to_numpy(float), case.lengths).all(axis=1)
    of_length = [name for name in stated if "_ttft_" in name or "_e2e_" in name]
    points.loc[~is_same, of_length] = np.nan
    points = points[points[TARGETS].notna().any(axis=1) | frame.is_refused(points, slo)]
    points = _of_asked_cache(points, case)
    columns = [*KEYS, *SETTINGS, KV_PRECISION, *TARGETS, *stated, *_BASES, "failed_share"]
    return _one_per_load(points[columns].assign(**case.mean_lengths, e2e_ms=np.nan), slo)


def _of_asked_cache(points: pd.DataFrame, case: Case) -> pd.DataFrame:
    """Return the points of the asked precision of the KV cache, where a load has some; else all.

    They are taken to have the asked precision where they do not say.
    """
    asked = case.serving.kv_precision
    if asked is None:
        return points
    points = points.assign(**{KV_PRECISION: points[KV_PRECISION].fillna(asked)})
    is_asked = points[KV_PRECISION] == asked
    has_asked = is_asked.groupby([points[name] for name in KEYS]).transform("any")
    return points[is_asked | ~has_asked]


def _as_sources_measure(case: Case) -> Case:
    """Return a case without drafts and without prompts that a cache holds; itself if it has
    neither."""
    plain = case.without_speculation()
    if not plain.question.prefix_hit_rate:
        return plain
    return replace(plain.varied({"prefix_hit_rate": 0.0}), exclusions=case.excluded)


def _one_per_load(points: pd.DataFrame, slo: SLO) -> pd.DataFrame:
    """Return measurements of the LLM with one row per GPU profile and load."""
    if points.empty:
        return points
    # A probe's rows are at the asked percentiles.
    points = points.reindex(columns=[*dict.fromkeys([*points, *_BASES])])
    points[frame.BASES] = points[frame.BASES].astype(object).fillna("")
    if "tpot" in slo.limits and "itl" not in slo.limits:  # what follows the first token is TPOT
        points["itl_ms"] = points["own_tpot_ms"].fillna(points["itl_ms"])
    # Repeated measurements are one, with less noise.
    texts = {*frame.BASES, KV_PRECISION}
    ways = {name: "first" if name in texts else "median" for name in points.columns.drop(KEYS)}
    return points.groupby(KEYS, as_index=False).agg(ways)


def _possible_points(case: Case, gpu_profiles: Mapping[str, GPUProfile]) -> pd.DataFrame:
    """Return the LLM's own points of the sources, without those that cannot be."""
    points = case.trusted_points
    points = points[points["llm_id"] == case.llm_id]
    if points.empty:
        return points
    numbered = points.assign(row=np.arange(len(points)))
    medians = frame.at_percentile(numbered, MEDIANS.percentiles, more=["row"])
    medians = medians[medians["users"].notna()].reset_index(drop=True)
    facts = FactTables(case.measured_llms, gpu_profiles)
    cannot_be = impossible(
        fact_rows(case.measured_keys(medians), facts), medians[TARGETS].to_numpy(float)
    )
    return points.drop(points.index[medians.loc[cannot_be, "row"]])


def _of_alike_requests(points: pd.DataFrame, case: Case, slo: SLO) -> pd.DataFrame:
    """Return the points of users, as an SLO judges them, whose requests are like the case's."""
    points = judged(points, slo)
    points = points[points["users"].notna()]
    points = points[are_alike(points[LENGTHS].to_numpy(float), case.lengths)]
    points[TARGETS] = points[TARGETS].where(points[TARGETS] > 0)
    return points


def _of_alike_servers(
    points: pd.DataFrame, case: Case, gpu_profiles: Mapping[str, GPUProfile]
) -> pd.DataFrame:
    """Return the points of servers whose layout, engine and weights are like the case's.

    Those where the LLM as it is asked about leaves no memory for a request say nothing of it.
    """
    # Unless it is asked for, attention is not replicated; experts may be shared out either way.
    for name, parts in (
        ("data_parallel", case.serving.data_parallel or 1),
        ("expert_parallel", case.serving.expert_parallel),
    ):
        if parts is not None:
            n_gpus = points["gpu_profile_id"].map(lambda name: gpu_profiles[name].n_gpus)
            points = points[points[name].fillna(1) == n_gpus.clip(upper=parts)]
    points = points[points[GRAPHS].fillna(True) != case.serving.enforce_eager]
    served_as = {
        "engine": case.serving.engine,
        "precision": case.serving.precision or precision_of(case.llm),
    }
    for name, value in served_as.items():
        points = points[points[name].isna() | (points[name] == value)]
    holds = [
        name
        for name in points["gpu_profile_id"].unique()
        if case.memory_on(gpu_profiles[name]).kv_bytes > 0
    ]
    return points[points["gpu_profile_id"].isin(holds)]


MEDIANS = SLO("medians", ttft_ms=1.0, itl_ms=1.0, percentile=50, users=1)
"""What a law of a step is fitted to, whatever limits are asked about."""


def fit_medians(case: Case) -> Roofline:
    """Return the predictor fitted to medians, whose terms are the law of a step on GPUs.

    Raises:
        InputError: another predictor is asked for, or the points are too few.
    """
    gpu_profiles = {**case.source.characterization.profiles, **case.gpu_profiles}
    model = make_predictor(replace(case.question, slo=MEDIANS), gpu_profiles)
    if not isinstance(model, Roofline):
        problem = f"{case.question.predictor} has no law of a step"
        raise InputError(problem, field="--predictor", fix="use --predictor roofline")
    if any(case.gpu_profiles[profile_id].gpu.kind != "cpu" for profile_id in case.candidates):
        fit_predictor(model, case, MEDIANS)
    return model

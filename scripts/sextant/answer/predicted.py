"""An LLM without measurements: joint draws of its latencies, and the options that follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.basis import widened
from sextant.answer.candidates import Subject, profile
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.decide.decision import loads, probed, weigh, weigh_needed
from sextant.facts.gpu import GPUProfile, token_prices
from sextant.facts.llm import precision_of
from sextant.facts.slo import SLO, are_alike
from sextant.points.frame import KEYS, LENGTHS, TARGETS, Facts, at_percentile, is_refused, judged
from sextant.predict import INTERVAL, JOULES, Calibration, Draws, JointPredictor, Rows
from sextant.predict.roofline import Roofline, fit_or_restore

if TYPE_CHECKING:
    from sextant.answer.step_laws import Arrivals
    from sextant.predict.roofline.energy import Energy

_SEED = 42


@dataclass(frozen=True)
class Forecast:
    """A fitted model and what it says of one LLM."""

    subject: Subject
    slo: SLO
    model: JointPredictor
    own: Calibration | None
    """What was measured of the LLM for such requests, if anything."""
    users: Sequence[int]
    """Numbers that a replica may get."""
    arrivals: "Arrivals | None" = None
    """What a request rate is sized by."""

    @cached_property
    def draws(self) -> Draws:
        """Joint draws of every candidate at these numbers of users.

        Where arrivals are simulated they only say what to measure, and few will do.
        """
        users = [*self.users] if self.arrivals is None else probed(self.users)
        X = self.subject.rows_at(self.model, users)
        return draw_rows(self.model, self.subject, self.own, X)

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of a request, shape (1, 2)."""
        return self.subject.lengths

    def options(self, slo: SLO | None = None) -> pd.DataFrame:
        """Return what `weigh` says of every option, for this SLO or another."""
        slo, profiles = slo or self.slo, self.subject.profiles
        if self.arrivals is None:
            return weigh(self.draws_for(slo), profiles, slo)
        is_brief = slo != self.slo
        needed = self.arrivals.needed(slo, self.subject.candidates, is_brief=is_brief)
        return weigh_needed(self.subject.llm_id, needed, profiles, slo)

    def draws_for(self, slo: SLO) -> Draws:
        """Return the draws that decide on an SLO: none meets what was measured to break it."""
        if not self.own:
            return self.draws
        capped = self.own.capped(self.draws.X, self.draws.samples_ms, slo)
        return self.draws._replace(samples_ms=capped)

    def at(self, profile_id: str, users: int) -> pd.Series:
        """Return the medians and 90% intervals of the latencies at one load of a replica.

        Those are `<latency>_ms, <latency>_lo_ms, <latency>_hi_ms` of nTTFT, ITL and all that has a
        limit, `<limit>_ratio`, median over limit, and `requests_per_s` by Little's law.
        """
        draws = self.draws_at(profile_id, users)
        found = draws.summary().iloc[0].to_dict()
        limited = self.slo.latencies(draws.samples_ms[:, 0], self.lengths[0])
        for name, values in limited.items():
            low, median, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]])
            found |= {f"{name}_ms": median, f"{name}_lo_ms": low, f"{name}_hi_ms": high}
            found[f"{name}_ratio"] = median / self.slo.limits[name].limit_ms
        e2e_ms = np.median(self.slo.request_ms(draws.samples_ms[:, 0], self.lengths[0]))
        return pd.Series(found | {"requests_per_s": 1e3 * users / e2e_ms})

    def draws_at(self, profile_id: str, users: int) -> Draws:
        """Return the draws of one load: one of those that there are, else new ones."""
        X, samples_ms = self.draws
        is_it = ((X["gpu_profile_id"] == profile_id) & (X["users"] == users)).to_numpy()
        if is_it.any():
            return Draws(X[is_it], samples_ms[:, is_it])
        rows = self.subject.rows_at(self.model, [users], [profile_id])
        return draw_rows(self.model, self.subject, self.own, rows)


class Fitted(NamedTuple):
    """What a model was fitted to."""

    latencies: pd.DataFrame
    """The points, with the latencies that the limits are compared with."""
    profiles: dict[str, GPUProfile]
    """All that points, probe and question name."""


def fit_to(
    model: JointPredictor, subject: Subject, slo: SLO, probe: pd.DataFrame | None = None
) -> Fitted:
    """Fit a model to the measured LLMs at an SLO's percentiles, and to the probe if there is one.

    A point needs no more than one of the two latencies.

    Raises:
        InputError: too few LLMs were measured.
    """
    known = subject.source.known
    latencies = at_percentile(known.points, slo.percentiles, slo.first_token)
    latencies[TARGETS] = latencies[TARGETS].where(latencies[TARGETS] > 0)
    is_known = latencies[TARGETS].notna().any(axis=1) & latencies["users"].notna()
    latencies = latencies[is_known].astype({"users": "int64"}).reset_index(drop=True)
    n_llms = latencies["llm_id"].nunique()
    if n_llms < model.min_training_llms:
        problem = f"{n_llms} LLMs with points, of {model.min_training_llms} that are needed"
        fix = "measure more LLMs, or add another --source, e.g. archive:inferencex"
        raise InputError(f"no prediction is possible ({problem})", fix=fix)
    profiles = {**known.profiles, **subject.profiles}
    training = Rows(subject.training(model, latencies, profiles), latencies[TARGETS])
    has_lengths = training.X[LENGTHS].notna().all(axis=1)
    if has_lengths.any():  # a law may need them
        training = training.where(has_lengths)
    references = None
    if probe is not None:
        measured_on = probe["gpu_profile_id"].unique()
        profiles |= {name: profile(name, profiles, field="--probe") for name in measured_on}
        parts = probe[probe[TARGETS].notna().any(axis=1)]
        references = Rows(subject.asked(model, parts, profiles), parts[TARGETS])
    if type(model) is Roofline:
        fit_or_restore(model, training, references)
    else:
        model.fit(training, references)
    return Fitted(latencies, profiles)


def forecast(
    model: JointPredictor, subject: Subject, slo: SLO, probe: pd.DataFrame | None = None
) -> Forecast:
    """Fit a model (see `fit_to`) and draw the latencies of the LLM.

    Raises:
        InputError: too few LLMs were measured.
    """
    return forecast_of(model, fit_to(model, subject, slo, probe), subject, slo, probe)


def forecast_of(
    model: JointPredictor,
    fitted: Fitted,
    subject: Subject,
    slo: SLO,
    probe: pd.DataFrame | None = None,
) -> Forecast:
    """Return the latencies of an LLM by a model that is fitted; one fit may serve several LLMs."""
    latencies, profiles = fitted
    own = _calibrate(model, subject, slo, profiles, probe)
    return Forecast(subject, slo, model, own, loads(slo, int(latencies["users"].max())))


def draw_rows(
    model: JointPredictor, subject: Subject, own: Calibration | None, X: pd.DataFrame
) -> Draws:
    """Draw the latencies of rows of a design matrix of the LLM, through what was measured of it."""
    keys = X[KEYS].astype({"users": "int64"}).assign(**subject.mean_lengths)
    samples_ms = widened(model.sample(X), subject.widening_sd, _SEED)
    return Draws(keys, own.corrected(keys, samples_ms) if own else samples_ms)


def _calibrate(
    model: JointPredictor,
    subject: Subject,
    slo: SLO,
    profiles: Mapping[str, GPUProfile],
    probe: pd.DataFrame | None,
) -> Calibration | None:
    """Return the calibration to the probe and to the source's points of such requests."""
    points = subject.source.known.points
    near = judged(points[points["llm_id"] == subject.llm_id], slo)
    near = _alike(near[near["users"].notna()], subject)
    near[TARGETS] = near[TARGETS].where(near[TARGETS] > 0)
    served_as = {
        "engine": subject.serving.engine,
        "precision": subject.serving.precision or precision_of(subject.llm),
    }
    for name, value in served_as.items():
        near = near[near[name].isna() | (near[name] == value)]
    own = [name for name in near if name.startswith("own_")]
    # Of requests of other lengths TTFT and E2E follow from nTTFT and ITL.
    is_same = np.isclose(near[LENGTHS].to_numpy(float), subject.lengths).all(axis=1)
    near.loc[~is_same, [name for name in own if "_ttft_" in name or "_e2e_" in name]] = np.nan
    of_lengths = near[[*KEYS, *TARGETS, *own, "failed_share"]].assign(**subject.mean_lengths)
    is_known = near[TARGETS].notna().any(axis=1) | is_refused(near, slo)
    parts = [of_lengths[is_known].assign(e2e_ms=np.nan)]
    parts += [_alike(probe, subject)] if probe is not None else []
    points = pd.concat(parts, ignore_index=True)
    if points.empty:
        return None
    if "tpot" in slo.limits and "itl" not in slo.limits:  # what follows the first token is TPOT
        points["itl_ms"] = points["own_tpot_ms"].fillna(points["itl_ms"])
    # Repeated measurements are one, with less noise.
    points = points.groupby(KEYS, as_index=False)[points.columns.drop(KEYS).tolist()].median()
    # Widened as the asked draws are: at a measured load nothing but the measurement counts.
    asked = subject.asked(model, points, profiles)
    samples_ms = widened(model.sample(asked), subject.widening_sd, _SEED)
    return Calibration(_split(points, samples_ms), samples_ms, _SEED)


def _alike(points: pd.DataFrame, subject: Subject) -> pd.DataFrame:
    """Return the points of requests like the asked ones."""
    return points[are_alike(points[LENGTHS].to_numpy(float), subject.lengths)]


def _split(points: pd.DataFrame, samples_ms: np.ndarray) -> pd.DataFrame:
    """Return points with both latencies where E2E alone was measured, in the law's proportion."""
    law = np.median(samples_ms, axis=0)
    steps = (points["output_tokens"] - 1).clip(lower=0)
    e2e_ms = law[:, 0] * points["input_tokens"] + law[:, 1] * steps
    alone = points["e2e_ms"].notna() & points[TARGETS].isna().all(axis=1)
    scaled = pd.DataFrame(law, points.index, TARGETS).mul(points["e2e_ms"] / e2e_ms, axis=0)
    return points.assign(**points[TARGETS].where(~alone, scaled))


_STEP = ["launch_ms", "weights_ms", "kv_ms", "sequences_ms"]
"""Terms of a step of decode, without the prompts that it prefills."""


def cost(made: Forecast, chosen: dict[str, Any], latency: dict[str, Any]) -> dict[str, Any]:
    """Return USD per million input and output tokens of the chosen deployment at its load.

    `usd_per_hour` is split by the device time that a request's prefill and decode take, from the
    terms of the law; a predictor without terms splits it by tokens (`split`: `time` or `tokens`).
    `requests_per_s` is what is served, by Little's law where users are asked for; `utilisation`
    the load over the most that the replicas carry within the limits, at median latencies.
    """
    input_tokens, output_tokens = made.lengths[0]
    rate = made.slo.request_rate_rps or chosen["replicas"] * latency["requests_per_s"]
    share = _prefill_share(made, chosen["gpu_profile_id"], latency["users"])
    prices = token_prices(chosen["usd_per_hour"], rate, made.lengths[0], share)
    most = latency["load_median"] * chosen["replicas"]
    return {
        "usd_per_million_input_tokens": prices[0],
        "usd_per_million_output_tokens": prices[1],
        "split": "tokens" if share is None else "time",
        "prefill_share": input_tokens / (input_tokens + output_tokens) if share is None else share,
        "requests_per_s": rate,
        "utilisation": made.slo.load / most if most else None,
    }


def _prefill_share(made: Forecast, profile_id: str, users: int) -> float | None:
    """Return the share of a request's device time that its prefill takes, None without terms.

    A step of decode is shared by the requests of its batch.
    """
    explain = getattr(made.model, "explain", None)
    if explain is None:
        return None
    row: pd.Series = explain(made.subject.rows_at(made.model, [users], [profile_id])).iloc[0]
    if not {"prefill_ms", "itl_batch", *_STEP} <= set(row.index):
        return None
    step_ms = row[_STEP].sum() + row.get("overlap_ms", 0.0)
    decode_ms = made.lengths[0, 1] * step_ms / max(row["itl_batch"], 1.0)
    return float(row["prefill_ms"] / (row["prefill_ms"] + decode_ms))


_WH_PER_MILLION = 1e6 / 3600
"""Watt-hours of a million tokens that take a joule each."""
_SEED = 42


def learned(made: Forecast) -> "Energy | None":
    """Return what devices draw, from all points that have energy and ITL; TTFT is not needed."""
    subject, slo = made.subject, made.slo
    points = at_percentile(subject.source.known.points, slo.percentiles)
    points = points[points["users"].notna()]
    measured = points[["itl_ms", "energy_j_per_token"]]
    if not (measured > 0).all(axis=1).any():
        return None
    from sextant.predict.roofline.energy import Energy  # few sources have energy

    facts = Facts(subject.measured, subject.source.known.profiles)
    return Energy.fitted(subject.measured_keys(points).join(measured), facts)


def with_joules(made: Forecast, power: "Energy | None", rows: Sequence[Row]) -> list[Row]:
    """Return rows of options, each with the joules per output token of its replicas.

    Medians and 90% intervals `energy_j_per_token, energy_lo_j_per_token, energy_hi_j_per_token`;
    None where the source has no energy, the device no TDP, or the LLM does not fit.
    """
    served = [row for row in rows if row["users_per_replica"] is not None]
    joules: dict[str, Row] = {}
    if power is not None and served:
        subject = made.subject
        loads = pd.DataFrame(served).rename(columns={"users_per_replica": "users"})
        keys = loads[["gpu_profile_id", "users"]].assign(llm_id=subject.llm_id)
        X = subject.asked(made.model, keys, subject.profiles)
        itl_ms = draw_rows(made.model, subject, made.own, X).samples_ms[..., 1]
        asked = keys.assign(**subject.serving.columns())
        found = power.predict(asked, Facts(subject.llms, subject.profiles), itl_ms, _SEED)
        joules = dict(zip(keys["gpu_profile_id"], frame_rows(found), strict=True))
    unknown = dict.fromkeys(JOULES)
    return [row | joules.get(row["gpu_profile_id"], unknown) for row in rows]


def energy(
    made: Forecast, power: "Energy | None", profile_id: str, users: int
) -> dict[str, Any] | None:
    """Return joules per output token of a replica with these users, and what they rest on.

    None where the source has no energy, or the device's TDP is not known. Beside `JOULES` it has
    `wh_per_million_output_tokens`, `n_llms` and the `sources` that measured energy.
    """
    row = {"gpu_profile_id": profile_id, "users_per_replica": users}
    (found,) = with_joules(made, power, [row])
    if power is None or found["energy_j_per_token"] is None:
        return None
    points = made.subject.source.known.points
    return {
        **{name: found[name] for name in JOULES},
        "wh_per_million_output_tokens": _WH_PER_MILLION * found["energy_j_per_token"],
        "n_llms": power.n_llms,
        "sources": sorted(points.loc[points["energy_j_per_token"] > 0, "source"].unique()),
    }

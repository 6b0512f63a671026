"""An LLM without measurements: joint draws of its latencies, and the options that follow."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.candidates import Subject, profile
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.decide import decision as decisions
from sextant.decide import sizing
from sextant.decide.decision import FAIR, LISTED, SAFE, choose
from sextant.facts.gpu import GIB, GPUProfile, token_prices
from sextant.facts.llm import precision_of, served
from sextant.facts.slo import SLO, are_alike, worst_limit
from sextant.law.calibration import Calibration
from sextant.law.roofline import Roofline, fit_or_restore
from sextant.pages.words import chance, shown_chance
from sextant.points import frame
from sextant.points.frame import IDENTIFIERS, KEYS, LENGTHS, SERVING, TARGETS, WAIT, judged
from sextant.predict.draws import INTERVAL, JOULES, Draws
from sextant.predict.predictor import JointPredictor, TrainingRows

if TYPE_CHECKING:
    from sextant.ask.laws import RateSizer
    from sextant.law.energy import Energy

_SEED = 42


@dataclass(frozen=True)
class Forecast:
    """A fitted model and what it says of one LLM."""

    subject: Subject
    slo: SLO
    model: JointPredictor
    own: Calibration | None  # what was measured of the LLM for such requests, if anything
    users: Sequence[int]  # numbers that a replica may get
    arrivals: "RateSizer | None" = None  # what a request rate is sized by

    @cached_property
    def draws(self) -> Draws:
        """Joint draws of every candidate at these numbers of users. Where arrivals are simulated
        they only say what to measure, and few will do."""
        users = [*self.users] if self.arrivals is None else decisions.probed(self.users)
        X = self.subject.rows_at(self.model, users)
        return draw_rows(self.model, self.subject, self.own, X)

    def options(self, slo: SLO | None = None) -> pd.DataFrame:
        """Return what `weigh` says of every option, for this SLO or another."""
        slo, profiles = slo or self.slo, self.subject.profiles
        if self.arrivals is None:
            return decisions.weigh(self.draws_for(slo), profiles, slo)
        is_brief = slo != self.slo
        how = {"is_brief": is_brief}
        how["is_best_enough"] = is_brief and self.subject.question.decision == "utility"
        needed = self.arrivals.needed(slo, self.subject.candidates, **how)
        return decisions.weigh_needed(self.subject.llm_id, needed, profiles, slo)

    def draws_for(self, slo: SLO) -> Draws:
        """Return the draws that decide on an SLO: none meets what was measured to break it."""
        if not self.own:
            return self.draws
        capped = self.own.capped(self.draws.X, self.draws.samples_ms, slo)
        return self.draws._replace(samples_ms=capped)

    def at(self, profile_id: str, users: int) -> pd.Series:
        """Return the medians and 90% intervals of the latencies at one load of a replica. Those are
        `<latency>_ms, <latency>_lo_ms, <latency>_hi_ms` of nTTFT, ITL and all that has a limit,
        `<limit>_ratio`, median over limit, and `requests_per_s` by Little's law."""
        draws, side = self.draws_at(profile_id, users), self.subject.lengths[0]
        found = draws.summary().iloc[0].to_dict()
        for name, values in self.slo.latencies(draws.samples_ms[:, 0], side).items():
            low, median, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]])
            found |= {f"{name}_ms": median, f"{name}_lo_ms": low, f"{name}_hi_ms": high}
            found[f"{name}_ratio"] = median / self.slo.limits[name].limit_ms
        e2e_ms = np.median(self.slo.request_ms(draws.samples_ms[:, 0], side))
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

    latencies: pd.DataFrame  # the points, with the latencies that the limits are compared with
    profiles: dict[str, GPUProfile]  # all that points, probe and question name


def fit_to(model: JointPredictor, subject: Subject, slo: SLO) -> Fitted:
    """Fit a model to the measured LLMs at an SLO's percentiles, and to the probe if there is one. A
    point needs no more than one of the two latencies. Raises InputError: too few LLMs."""
    known, probe = subject.source.known, subject.probe
    latencies = frame.at_percentile(known.points, slo.percentiles, slo.first_token)
    latencies[TARGETS] = latencies[TARGETS].where(latencies[TARGETS] > 0)
    is_known = latencies[TARGETS].notna().any(axis=1) & latencies["users"].notna()
    latencies = latencies[is_known].astype({"users": "int64"}).reset_index(drop=True)
    n_llms = latencies["llm_id"].nunique()
    if n_llms < model.min_training_llms:
        problem = f"{n_llms} LLMs with points, of {model.min_training_llms} that are needed"
        fix = "measure more LLMs, or add another --source, e.g. archive:inferencex"
        raise InputError(f"no prediction is possible ({problem})", fix=fix)
    profiles = {**known.profiles, **subject.profiles}
    training = TrainingRows(subject.training(model, latencies, profiles), latencies[TARGETS])
    references = None
    if probe is not None:
        measured_on = probe["gpu_profile_id"].unique()
        profiles |= {name: profile(name, profiles, field="--probe") for name in measured_on}
        parts = probe[probe[TARGETS].notna().any(axis=1)]
        if len(parts):  # else E2E alone was measured
            references = TrainingRows(subject.asked(model, parts, profiles), parts[TARGETS])
    if type(model) is Roofline:
        fit_or_restore(model, training, references)
    else:
        model.fit(training, references)
    if subject.serving.speculative and not has_steps(model):
        problem = "speculation is known of servers with CUDA graphs alone"
        fix = "leave it out, or use --predictor roofline --source archive:inferencex"
        raise InputError(problem, field="--speculative", fix=fix)
    return Fitted(latencies, profiles)


def has_steps(model: JointPredictor) -> bool:
    """Return whether a fitted model knows the steps of servers apart."""
    return type(model) is Roofline and model.has_steps


def forecast_of(model: JointPredictor, fitted: Fitted, subject: Subject, slo: SLO) -> Forecast:
    """Return the latencies of an LLM by a model that is fitted; one fit may serve several LLMs."""
    latencies, profiles = fitted
    own = _calibrate(model, subject, slo, profiles)
    return Forecast(subject, slo, model, own, decisions.loads(slo, int(latencies["users"].max())))


def draw_rows(
    model: JointPredictor, subject: Subject, own: Calibration | None, X: pd.DataFrame
) -> Draws:
    """Draw the latencies of rows of a design matrix of the LLM, through what was measured of it."""
    keys = X[KEYS].astype({"users": "int64"}).assign(**subject.mean_lengths)
    samples_ms = _sample(model, subject, X)
    return Draws(keys, own.corrected(keys, samples_ms) if own else samples_ms)


def _sample(model: JointPredictor, subject: Subject, X: pd.DataFrame) -> np.ndarray:
    """Return draws, all moved by one random number each where lengths are beyond the measured."""
    samples_ms = model.sample(X)
    if not subject.widening_sd:
        return samples_ms
    shape = (len(samples_ms), 1, 1)
    moved = np.random.default_rng(_SEED).normal(0, subject.widening_sd, shape)
    return np.asarray(samples_ms * np.exp(moved))


def _calibrate(
    model: JointPredictor, subject: Subject, slo: SLO, profiles: Mapping[str, GPUProfile]
) -> Calibration | None:
    """Return the calibration to the probe and to the source's points of such requests."""

    def alike(points: pd.DataFrame) -> pd.DataFrame:
        return points[are_alike(points[LENGTHS].to_numpy(float), subject.lengths)]

    points, probe = subject.source.known.points, subject.probe
    points = points[points["llm_id"] == subject.llm_id]
    if probe is None and points.empty:
        return None
    near = judged(points, slo)
    near = alike(near[near["users"].notna()])
    near[TARGETS] = near[TARGETS].where(near[TARGETS] > 0)
    served_as = {
        "engine": subject.serving.engine,
        "precision": subject.serving.precision or precision_of(subject.llm),
    }
    for name in ("data_parallel", "expert_parallel"):
        if (parts := getattr(subject.serving, name)) is not None:
            n_gpus = near["gpu_profile_id"].map(lambda name: profiles[name].n_gpus)
            near = near[near[name].fillna(1) == n_gpus.clip(upper=parts)]
    for name, value in served_as.items():
        near = near[near[name].isna() | (near[name] == value)]
    own = [name for name in near if name.startswith("own_")]
    # Of requests of other lengths TTFT and E2E follow from nTTFT and ITL.
    is_same = np.isclose(near[LENGTHS].to_numpy(float), subject.lengths).all(axis=1)
    near.loc[~is_same, [name for name in own if "_ttft_" in name or "_e2e_" in name]] = np.nan
    near = near[near[TARGETS].notna().any(axis=1) | frame.is_refused(near, slo)]
    columns = [*KEYS, WAIT, *TARGETS, *own, "failed_share"]
    parts = [near[columns].assign(**subject.mean_lengths, e2e_ms=np.nan)]
    if probe is not None:
        # Points of sources are without speculation, a probe is as asked.
        parts = [alike(probe)] if subject.serving.speculative else [*parts, alike(probe)]
    else:
        subject = subject.undrafted()
    points = pd.concat(parts, ignore_index=True)
    if points.empty:
        return None
    if "tpot" in slo.limits and "itl" not in slo.limits:  # what follows the first token is TPOT
        points["itl_ms"] = points["own_tpot_ms"].fillna(points["itl_ms"])
    # Repeated measurements are one, with less noise.
    points = points.groupby(KEYS, as_index=False)[points.columns.drop(KEYS).tolist()].median()
    # Widened as the asked draws are: at a measured load nothing but the measurement counts.
    samples_ms = _sample(model, subject, subject.asked(model, points, profiles))
    # Where E2E alone was measured both latencies are in the law's proportion.
    law = np.median(samples_ms, axis=0)
    steps = (points["output_tokens"] - 1).clip(lower=0)
    e2e_ms = law[:, 0] * points["input_tokens"] + law[:, 1] * steps
    alone = points["e2e_ms"].notna() & points[TARGETS].isna().all(axis=1)
    scaled = pd.DataFrame(law, points.index, TARGETS).mul(points["e2e_ms"] / e2e_ms, axis=0)
    points = points.assign(**points[TARGETS].where(~alone, scaled))
    return Calibration(points, samples_ms, _SEED)


_STEP = ["launch_ms", "weights_ms", "kv_ms", "sequences_ms"]
"""Terms of a step of decode, without the prompts that it prefills."""


def cost(made: Forecast, chosen: dict[str, Any], latency: dict[str, Any]) -> dict[str, Any]:
    """Return USD per million input and output tokens of the chosen deployment at its load.
    `usd_per_hour` is split by the device time that a request's prefill and decode take, from the
    terms of the law; a predictor without terms splits it by tokens (`split`: `time` or `tokens`).
    `requests_per_s` is what is served, by Little's law where users are asked for; `utilisation` the
    load over the most that the replicas carry within the limits, at median latencies."""
    name, users, lengths = chosen["gpu_profile_id"], latency["users"], made.subject.lengths[0]
    rate = made.slo.request_rate_rps or made.slo.load / users * latency["requests_per_s"]
    share = None  # of a request's device time that its prefill takes
    if (explain := getattr(made.model, "explain", None)) is not None:
        row: pd.Series = explain(made.subject.rows_at(made.model, [users], [name])).iloc[0]
        # A step of decode is shared by the requests of its batch.
        step_ms = row[_STEP].sum() + row.get("overlap_ms", 0.0)
        decode_ms = (lengths[1] > 1) * lengths[1] * step_ms / max(row["itl_batch"], 1.0)
        share = float(row["prefill_ms"] / (row["prefill_ms"] + decode_ms))
    prices = token_prices(chosen["usd_per_hour"], rate, lengths, share)
    most = latency["load_median"] * chosen["replicas"]
    return {
        "usd_per_million_input_tokens": prices[0],
        "usd_per_million_output_tokens": prices[1],
        "split": "tokens" if share is None else "time",
        "prefill_share": lengths[0] / lengths.sum() if share is None else share,
        "requests_per_s": rate,
        "utilisation": made.slo.load / most if most else None,
    }


_WH_PER_MILLION = 1e6 / 3600  # watt-hours of a million tokens that take a joule each


def learned(made: Forecast) -> "Energy | None":
    """Return what devices draw, from all points that have energy and ITL; TTFT is not needed."""
    subject, slo = made.subject, made.slo
    points = frame.at_percentile(subject.source.known.points, slo.percentiles)
    points = points[points["users"].notna()]
    measured = points[["itl_ms", "energy_j_per_token"]]
    if not (measured > 0).all(axis=1).any():
        return None
    from sextant.law.energy import Energy  # few sources have energy

    facts = frame.FactTables(subject.measured, subject.source.known.profiles)
    return Energy.fitted(subject.measured_keys(points).join(measured), facts)


def with_joules(made: Forecast, power: "Energy | None", rows: Sequence[Row]) -> list[Row]:
    """Return rows of options, each with the joules per output token of its replicas. Medians and
    90% intervals `energy_j_per_token, energy_lo_j_per_token, energy_hi_j_per_token`; None where the
    source has no energy, the device no TDP, or the LLM does not fit."""
    served = pd.DataFrame([row for row in rows if row["users_per_replica"] is not None])
    joules: dict[str, Row] = {}
    if power is not None and len(served):
        subject = made.subject
        keys = served[["gpu_profile_id", "users_per_replica"]].set_axis(KEYS[1:], axis=1)
        keys = keys.assign(llm_id=subject.llm_id)
        X = subject.asked(made.model, keys, subject.profiles)
        itl_ms = draw_rows(made.model, subject, made.own, X).samples_ms[..., 1]
        asked, facts = keys.assign(**subject.serving.columns()), (subject.llms, subject.profiles)
        found = power.predict(asked, frame.FactTables(*facts), itl_ms, _SEED)
        joules = dict(zip(keys["gpu_profile_id"], frame_rows(found), strict=True))
    return [row | joules.get(row["gpu_profile_id"], dict.fromkeys(JOULES)) for row in rows]


def energy(
    made: Forecast, power: "Energy | None", profile_id: str, users: int
) -> dict[str, Any] | None:
    """Return joules per output token of a replica with these users, and what they rest on. None
    where the source has no energy, or the device's TDP is not known. Beside `JOULES` it has
    `wh_per_million_output_tokens`, `n_llms` and the `sources` that measured energy."""
    if power is None:
        return None
    row = {"gpu_profile_id": profile_id, "users_per_replica": users}
    (found,) = with_joules(made, power, [row])
    if found["energy_j_per_token"] is None:
        return None
    points = made.subject.source.known.points
    return {
        **{name: found[name] for name in JOULES},
        "wh_per_million_output_tokens": _WH_PER_MILLION * found["energy_j_per_token"],
        "n_llms": power.n_llms,
        "sources": sorted(points.loc[points["energy_j_per_token"] > 0, "source"].unique()),
    }


_LOOSER = "limits × 1.25"
_CHANGES = {
    "limits × 0.8": {"limits": 0.8},
    _LOOSER: {"limits": 1.25},
    "half the load": {"load": 0.5},
    "twice the load": {"load": 2.0},
}
_NEVER_MS, _N_NEAREST = 1e9, 2
_OPTION = ["gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour", "probability_met"]
_PROFILE_USERS = ["users_lo", "users_median", "users_hi"]
_MISSES = ["fewest_users", *sizing.RATIOS, "limit_ratio"]


def choose_option(
    forecast: Forecast, options: pd.DataFrame, slo: SLO, decision: str, risk: float | None
) -> Row:
    """Return the chosen option; all but `llm_id` are None where there is none. By utility, only
    options of a probability of `FAIR` or more are chosen from; of a request rate the cheapest one
    of `SAFE` or more, if there is one."""
    if decision == "paper":
        chosen = _by_medians(forecast, options, slo)
    elif risk is not None:
        chosen = choose(options, risk)
    elif forecast.arrivals is not None and (options["probability_met"] >= SAFE).any():
        chosen = choose(options, 1 - SAFE)  # as `sextant capacity` does
    else:
        probability = options["probability_met"]
        chosen = choose(options.assign(probability_met=probability.where(probability >= FAIR, 0)))
    return frame_rows(chosen)[0]


def _by_medians(forecast: Forecast, options: pd.DataFrame, slo: SLO) -> pd.DataFrame:
    """Choose by eq. 1-3 of LLM-Pilot, as if the medians, or the likeliest law, were certain."""
    subject = forecast.subject
    if forecast.arrivals is not None:
        first = forecast.arrivals.needed(slo, subject.candidates).iloc[:1]
        weighed = decisions.weigh_needed(subject.llm_id, first, subject.profiles, slo)
        best = choose(weighed, risk=0.5)
        keys = ["llm_id", "gpu_profile_id", "replicas"]
        known = options[[*keys, "probability_met"]]
        return best.drop(columns="probability_met").merge(known, on=keys, how="left")
    medians = forecast.draws.X.join(forecast.draws.summary())
    rows = sizing.candidates(medians, [subject.llm_id], subject.profiles, slo)
    # What each replica gets of the users, as the other decision states it.
    best = sizing.recommend_cheapest(rows).drop(columns="users_per_replica")
    keys = ["llm_id", "gpu_profile_id", "replicas"]
    known = options[[*keys, "users_per_replica", "probability_met"]]
    return best.merge(known.astype({"replicas": "Int64"}), on=keys, how="left")


def list_profiles(
    forecast: Forecast, options: pd.DataFrame, risk: float | None, chosen: Mapping[str, Any]
) -> list[Row]:
    """Return one row per candidate, cheapest first, those ruled out last. `status` is `meets` with
    the cheapest option of the wanted probability or more, `unsure` with the most likely option,
    `too_slow` where that has less than `LISTED`, or `does_not_fit` with a `reason`; the profile
    that is chosen has the option that is chosen. No more than `most_users_tried` were measured.
    Ratios are as in `sizing.candidates`, of median latencies."""
    wanted = SAFE if risk is None else 1 - risk
    subject, (X, samples_ms) = forecast.subject, forecast.draws
    fewest, most = int(X["users"].min()), int(X["users"].max())
    lightest = (X["users"] == fewest).to_numpy()
    medians = np.median(samples_ms[:, lightest], axis=0)
    misses = pd.DataFrame(forecast.slo.ratios(medians, subject.lengths)).add_suffix("_ratio")
    misses = misses.reindex(columns=sizing.RATIOS)
    misses = misses.assign(fewest_users=fewest, limit_ratio=misses.max(axis=1))[_MISSES]
    missed = dict(zip(X.loc[lightest, "gpu_profile_id"], frame_rows(misses), strict=True))
    is_other = options["gpu_profile_id"] != chosen["gpu_profile_id"]
    possible = options[is_other | (options["replicas"] == chosen["replicas"])]
    rows, best = [], decisions.best_by_profile(possible, wanted)
    ends = ["replicas_lo", "replicas_hi"] if forecast.arrivals else []
    columns = [*_OPTION, "expected_utility", *_PROFILE_USERS, *ends]
    for row, is_wanted in zip(frame_rows(best[columns]), best["is_wanted"], strict=True):
        is_unlikely = row["probability_met"] < LISTED
        status = "meets" if is_wanted else "too_slow" if is_unlikely else "unsure"
        rows.append(row | missed[row["gpu_profile_id"]] | {"status": status, "reason": None})
    rows.sort(key=lambda row: (row["usd_per_hour"], -row["probability_met"]))
    empty = dict.fromkeys([*_OPTION, "expected_utility", *_PROFILE_USERS, *_MISSES])
    rows += [
        empty | {"gpu_profile_id": name, "status": "does_not_fit", "reason": reason}
        for name, reason in subject.excluded.items()
    ]
    measured = subject.source.gpu_ids
    for row in rows:
        row["most_users_tried"] = most
        row["is_gpu_measured"] = subject.profiles[row["gpu_profile_id"]].gpu.gpu_id in measured
    return rows


def find_safest(options: pd.DataFrame, chosen: Mapping[str, Any]) -> Row | None:
    """Return the cheapest option of probability `SAFE` or more, if the chosen one has less."""
    if chosen["probability_met"] is None or chosen["probability_met"] >= SAFE:
        return None
    safe = frame_rows(choose(options, 1 - SAFE))[0]
    return safe if safe["gpu_profile_id"] is not None else None


def list_frontier(options: pd.DataFrame, risk: float | None = None) -> list[Row]:
    """Return the options that no cheaper one matches in probability as shown, cheapest first. Those
    of less than `LISTED`, or than the risk allows, are left out, and those whose replicas would get
    more users than they are likely to serve within the limits."""
    least = LISTED if risk is None else min(LISTED, 1 - risk)
    is_overloaded = options["users_per_replica"] > options["users_hi"]
    ordered = options[(options["probability_met"] >= least) & ~is_overloaded].sort_values(
        ["usd_per_hour", "probability_met", "devices"], ascending=[True, False, True], kind="stable"
    )
    shown = ordered["probability_met"].map(shown_chance)
    return frame_rows(ordered.loc[shown > shown.cummax().shift(fill_value=-1), _OPTION])


def find_nearest_miss(forecast: Forecast, options: pd.DataFrame) -> Row:
    """Return the option that is most likely to meet the SLO, and what it lacks. Beside the option:
    `<metric>_ms` and `<metric>_ratio` at its load (medians), `binding_limit`, and the factors on
    all limits, `fair_factor` and `safe_factor`, with which that load has a probability of `FAIR`
    and `SAFE`. Of equally likely ones it is that of the smallest `fair_factor`."""
    most, limits = options["probability_met"].max(), forecast.slo.limits
    likely = options[options["probability_met"] == most]
    likely = likely.sort_values("usd_per_hour" if most else "users_per_replica", kind="stable")
    found = []
    for option in frame_rows(likely.drop_duplicates("gpu_profile_id")):
        ratios = _ratios(forecast, option)
        worst = np.max([*ratios.values()], axis=0)
        medians = {f"{name}_ratio": float(np.median(values)) for name, values in ratios.items()}
        at_ms = {f"{name}_ms": medians[f"{name}_ratio"] * limits[name].limit_ms for name in ratios}
        found.append(
            {
                **{name: option[name] for name in _OPTION},
                **medians,
                **at_ms,
                "binding_limit": worst_limit(medians),
                "fair_factor": float(np.quantile(worst, FAIR)),
                "safe_factor": float(np.quantile(worst, SAFE)),
            }
        )
    return min(found, key=lambda row: row["fair_factor"])


def _ratios(forecast: Forecast, option: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return each latency over its limit, by draw; those of requests alone where no replicas do."""
    name, slo = option["gpu_profile_id"], forecast.slo
    if forecast.arrivals is None:
        samples_ms = forecast.draws_at(name, option["users_per_replica"]).samples_ms
        return slo.ratios(samples_ms[:, 0], forecast.subject.lengths[0])
    replicas = option["replicas"] if option["probability_met"] else sizing.MOST_REPLICAS
    found = forecast.arrivals.latencies(slo, name, replicas)
    return {
        name: np.nan_to_num(found[name], nan=_NEVER_MS) / limit.limit_ms
        for name, limit in slo.limits.items()
    }


def list_changes(forecast: Forecast, decision: str, risk: float | None) -> list[Row]:
    """Return what would be chosen for other SLOs."""
    slos = {}
    for name, change in _CHANGES.items():
        with suppress(InputError):  # beyond what an SLO may ask for
            slos[name] = forecast.slo.scaled(**change)
    return [
        {"change": name, **choose_option(forecast, forecast.options(slo), slo, decision, risk)}
        for name, slo in slos.items()
    ]


def cliff(changes: Sequence[Row], chosen: Row) -> list[str]:
    """Return what to say where limits a quarter looser (`list_changes`) halve the price."""
    usd = chosen["usd_per_hour"]
    return [
        f"Limits a quarter looser cost half or less: {row['replicas']} × {row['gpu_profile_id']} = "
        f"{row['usd_per_hour']:.2f} USD/h, with probability {chance(row['probability_met'])}."
        for row in changes
        if row["change"] == _LOOSER and usd and row["gpu_profile_id"]
        if 2 * row["usd_per_hour"] <= usd
    ]


def find_nearest(subject: Subject, profile_id: str, slo: SLO) -> list[Row]:
    """Return the measured LLMs most similar to the one that is asked about, on a GPU profile. Those
    executed alike come first, then those on the asked engine, then those of nearest weight bytes as
    they were served; of each the requests whose lengths are nearest to the asked ones, and of
    several ways to serve these the one that served the most users, `users_per_replica`, within
    these limits. Each has those lengths, and the `engine`, `engine_version` and `precision` of
    those points. Points without lengths are left out."""
    known, execution = subject.source.known, subject.execution
    points = judged(known.points[known.points["gpu_profile_id"] == profile_id], slo)
    own = points[points["gpu_profile_id"] == profile_id].dropna(subset=["users", *LENGTHS])
    fixed, rows = subject.source.fixed, []
    for _, part in own.groupby(["llm_id", *SERVING], dropna=False):
        if fixed and part["source"].isin(fixed).all():
            distance = np.abs(np.log(part[LENGTHS].to_numpy(float) / subject.lengths)).sum(axis=1)
            part = part[distance <= distance.min() + 1e-9]
        first = part.iloc[0]
        way = {name: None if pd.isna(first[name]) else first[name] for name in SERVING}
        llm = served(subject.measured[first["llm_id"]], way["precision"], way["kv_precision"])
        rows.append(
            {
                **{name: first[name] for name in IDENTIFIERS},
                "weights_gib": llm.weight_bytes / GIB,
                "precision": precision_of(llm),
                "engine": way["engine"],
                "engine_version": way["engine_version"],
                "execution": execution[first["llm_id"]],
                "is_executed_alike": execution[first["llm_id"]] == execution[subject.llm_id],
                "users_per_replica": sizing.u_max(part, slo),
                "most_users_tried": int(part["users"].max()),
                **{name: float(part[name].median()) for name in LENGTHS},
            }
        )

    def distance_of(row: Row) -> tuple[bool, bool, float, float, int]:
        weights = abs(math.log(row["weights_gib"] * GIB / subject.llm.weight_bytes))
        lengths = np.abs(np.log([row[name] for name in LENGTHS] / subject.lengths)).sum()
        is_other_engine = row["engine"] not in (None, subject.serving.engine)
        most_users = row["users_per_replica"]
        return not row["is_executed_alike"], is_other_engine, weights, float(lengths), -most_users

    of_llm: dict[str, Row] = {}
    for row in sorted(rows, key=distance_of):
        of_llm.setdefault(row["llm_id"], row)
    return [*of_llm.values()][:_N_NEAREST]

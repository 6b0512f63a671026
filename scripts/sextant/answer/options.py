"""The options beside the chosen one: by price, by GPU profile, and for another SLO."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.predicted import Forecast
from sextant.base.rows import frame_rows
from sextant.decide.decision import FAIR, LISTED, SAFE, best_by_profile, choose
from sextant.decide.recommend import RATIOS, candidates, recommend
from sextant.facts.slo import SLO, worst_limit

_CHANGES = {
    "both limits × 0.8": {"limits": 0.8},
    "both limits × 1.25": {"limits": 1.25},
    "half the load": {"load": 0.5},
    "twice the load": {"load": 2.0},
}
_OPTION = ["gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour", "probability_met"]
_PROFILE_USERS = ["users_lo", "users_median", "users_hi"]
_MISSES = ["fewest_users", *RATIOS, "limit_ratio"]


def decide(
    forecast: Forecast, options: pd.DataFrame, slo: SLO, decision: str, risk: float | None
) -> dict[str, Any]:
    """Return the chosen option; all but `llm_id` are None where there is none.

    By utility, only options of a probability of `FAIR` or more are chosen from.
    """
    if decision == "paper":
        chosen = _by_medians(forecast, options, slo)
    elif risk is not None:
        chosen = choose(options, risk)
    else:
        probability = options["probability_met"]
        chosen = choose(options.assign(probability_met=probability.where(probability >= FAIR, 0)))
    return frame_rows(chosen)[0]


def _by_medians(forecast: Forecast, options: pd.DataFrame, slo: SLO) -> pd.DataFrame:
    """Choose by eq. 1-3 of LLM-Pilot, as if the medians were certain."""
    subject = forecast.subject
    medians = forecast.draws.X.join(forecast.draws.summary())
    rows = candidates(medians, [subject.llm_id], subject.profiles, slo)
    # What each replica gets of the users, as the other decision states it.
    best = recommend(rows).drop(columns="users_per_replica")
    keys = ["llm_id", "gpu_profile_id", "replicas"]
    known = options[[*keys, "users_per_replica", "probability_met"]]
    return best.merge(known.astype({"replicas": "Int64"}), on=keys, how="left")


def by_profile(forecast: Forecast, options: pd.DataFrame, risk: float | None) -> list[dict]:
    """Return one row per GPU profile on offer, cheapest first, those ruled out last.

    `status` is `meets` with the cheapest option of the wanted probability or more, `unsure` with
    the most likely option, `too_slow` where that has less than `LISTED`, or `does_not_fit` with a
    `reason`.
    `most_users_tried` bounds the users of a replica: no more were measured.
    Ratios are median latencies at the fewest users over their limits, as in
    `sextant.decide.recommend.candidates`.
    """
    wanted = SAFE if risk is None else 1 - risk
    subject, missed = forecast.subject, _misses(forecast)
    rows, best = [], best_by_profile(options, wanted)
    columns = [*_OPTION, "expected_utility", *_PROFILE_USERS]
    for row, is_wanted in zip(frame_rows(best[columns]), best["is_wanted"], strict=True):
        is_unlikely = row["probability_met"] < LISTED
        status = "meets" if is_wanted else "too_slow" if is_unlikely else "unsure"
        rows.append(row | missed[row["gpu_profile_id"]] | {"status": status, "reason": None})
    rows.sort(key=lambda row: (row["status"] != "meets", row["usd_per_hour"]))
    empty = dict.fromkeys([*_OPTION, "expected_utility", *_PROFILE_USERS, *_MISSES])
    rows += [
        empty | {"gpu_profile_id": name, "status": "does_not_fit", "reason": reason}
        for name, reason in subject.excluded.items()
    ]
    measured = {
        subject.source.known.profiles[name].gpu.gpu_id
        for name in subject.source.known.points["gpu_profile_id"].unique()
    }
    most_users_tried = int(forecast.draws.X["users"].max())
    for row in rows:
        row["most_users_tried"] = most_users_tried
        gpu_id = subject.profiles[row["gpu_profile_id"]].gpu.gpu_id
        row["is_gpu_measured"] = gpu_id in measured
    return rows


def _misses(forecast: Forecast) -> dict[str, dict[str, float]]:
    """Return by what factor each profile's latencies at the fewest users exceed their limits."""
    X, samples_ms = forecast.draws
    fewest = int(X["users"].min())
    lightest = (X["users"] == fewest).to_numpy()
    medians = np.median(samples_ms[:, lightest], axis=0)
    names = X.loc[lightest, "gpu_profile_id"]
    ratios = pd.DataFrame(forecast.slo.ratios(medians, forecast.lengths), index=names)
    ratios = ratios.add_suffix("_ratio").reindex(columns=RATIOS)
    ratios = ratios.assign(fewest_users=fewest, limit_ratio=ratios.max(axis=1))
    return dict(zip(names, frame_rows(ratios[_MISSES]), strict=True))


def safest(options: pd.DataFrame, chosen: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the cheapest option of probability `SAFE` or more, if the chosen one has less."""
    if chosen["probability_met"] is None or chosen["probability_met"] >= SAFE:
        return None
    safe = frame_rows(choose(options, 1 - SAFE))[0]
    return safe if safe["gpu_profile_id"] is not None else None


def frontier(options: pd.DataFrame, risk: float | None = None) -> list[dict[str, Any]]:
    """Return the options that no cheaper one matches in probability, cheapest first.

    Those of less than `LISTED`, or than the risk allows, are left out, and those whose replicas
    would get more users than they are likely to serve within the limits.
    """
    least = LISTED if risk is None else min(LISTED, 1 - risk)
    is_overloaded = options["users_per_replica"] > options["users_hi"]
    ordered = options[(options["probability_met"] >= least) & ~is_overloaded].sort_values(
        ["usd_per_hour", "probability_met"], ascending=[True, False], kind="stable"
    )
    best_before = ordered["probability_met"].cummax().shift(fill_value=0.0)
    return frame_rows(ordered.loc[ordered["probability_met"] > best_before, _OPTION])


def nearest_miss(forecast: Forecast, options: pd.DataFrame) -> dict[str, Any]:
    """Return the option that is most likely to meet the SLO, and what it lacks.

    Beside the option: `<metric>_ms` and `<metric>_ratio` at its load (medians), `binding_limit`,
    and the factors on all limits, `fair_factor` and `safe_factor`, with which that load has a
    probability of `FAIR` and `SAFE`. Of equally likely ones it is that of the smallest
    `fair_factor`.
    """
    most = options["probability_met"].max()
    likely = options[options["probability_met"] == most]
    likely = likely.sort_values("usd_per_hour" if most else "users_per_replica", kind="stable")
    found = [_missed(forecast, row) for row in frame_rows(likely.drop_duplicates("gpu_profile_id"))]
    return min(found, key=lambda row: row["fair_factor"])


def _missed(forecast: Forecast, option: Mapping[str, Any]) -> dict[str, Any]:
    """Return an option with its latencies over the limits."""
    samples_ms = forecast.draws_at(option["gpu_profile_id"], option["users_per_replica"]).samples_ms
    ratios = forecast.slo.ratios(samples_ms[:, 0], forecast.lengths[0])
    worst = np.max([*ratios.values()], axis=0)
    medians = {f"{name}_ratio": float(np.median(values)) for name, values in ratios.items()}
    limits = forecast.slo.limits
    return {
        **{name: option[name] for name in _OPTION},
        **medians,
        **{f"{name}_ms": medians[f"{name}_ratio"] * limits[name].limit_ms for name in ratios},
        "binding_limit": worst_limit(medians),
        "fair_factor": float(np.quantile(worst, FAIR)),
        "safe_factor": float(np.quantile(worst, SAFE)),
    }


def sensitivity(
    forecast: Forecast, chosen: Mapping[str, Any], decision: str, risk: float | None
) -> list[dict[str, Any]]:
    """Return what would be chosen for other SLOs, each with `is_other_profile`."""
    rows = []
    for name, change in _CHANGES.items():
        slo = forecast.slo.scaled(**change)
        other = decide(forecast, forecast.options(slo), slo, decision, risk)
        is_other = other["gpu_profile_id"] != chosen["gpu_profile_id"]
        rows.append({"change": name, **other, "is_other_profile": is_other})
    return rows

"""What else could be chosen: by price, by GPU profile, for another SLO; and the evidence."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.candidates import Subject
from sextant.answer.predicted import Forecast
from sextant.base.files import Row, frame_rows
from sextant.decide.decision import FAIR, LISTED, SAFE, best_by_profile, choose, weigh_needed
from sextant.decide.sizing import MOST_REPLICAS, RATIOS, candidates, recommend, u_max
from sextant.facts.gpu import GIB
from sextant.facts.llm import precision_of, served
from sextant.facts.slo import SLO, worst_limit
from sextant.pages.wording import shown_chance
from sextant.points.frame import IDENTIFIERS, LENGTHS, SERVING, judged

_CHANGES = {
    "limits × 0.8": {"limits": 0.8},
    "limits × 1.25": {"limits": 1.25},
    "half the load": {"load": 0.5},
    "twice the load": {"load": 2.0},
}
_NEVER_MS = 1e9
_OPTION = ["gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour", "probability_met"]
_PROFILE_USERS = ["users_lo", "users_median", "users_hi"]
_MISSES = ["fewest_users", *RATIOS, "limit_ratio"]


def choose_option(
    forecast: Forecast, options: pd.DataFrame, slo: SLO, decision: str, risk: float | None
) -> Row:
    """Return the chosen option; all but `llm_id` are None where there is none.

    By utility, only options of a probability of `FAIR` or more are chosen from; of a request rate
    the cheapest one of `SAFE` or more, if there is one.
    """
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
    """Choose by eq. 1-3 of LLM-Pilot, as if the medians were certain.

    Of a request rate, as if the likeliest law of a step were.
    """
    subject = forecast.subject
    if forecast.arrivals is not None:
        first = forecast.arrivals.needed(slo, subject.candidates).iloc[:1]
        best = choose(weigh_needed(subject.llm_id, first, subject.profiles, slo), risk=0.5)
        keys = ["llm_id", "gpu_profile_id", "replicas"]
        known = options[[*keys, "probability_met"]]
        return best.drop(columns="probability_met").merge(known, on=keys, how="left")
    medians = forecast.draws.X.join(forecast.draws.summary())
    rows = candidates(medians, [subject.llm_id], subject.profiles, slo)
    # What each replica gets of the users, as the other decision states it.
    best = recommend(rows).drop(columns="users_per_replica")
    keys = ["llm_id", "gpu_profile_id", "replicas"]
    known = options[[*keys, "users_per_replica", "probability_met"]]
    return best.merge(known.astype({"replicas": "Int64"}), on=keys, how="left")


def list_profiles(
    forecast: Forecast, options: pd.DataFrame, risk: float | None, chosen: Mapping[str, Any]
) -> list[Row]:
    """Return one row per candidate, cheapest first, those ruled out last.

    `status` is `meets` with the cheapest option of the wanted probability or more, `unsure` with
    the most likely option, `too_slow` where that has less than `LISTED`, or `does_not_fit` with a
    `reason`. The profile that is chosen has the option that is chosen.
    `most_users_tried` bounds the users of a replica: no more were measured.
    Ratios are median latencies at the fewest users over their limits, as in
    `sextant.decide.sizing.candidates`.
    """
    wanted = SAFE if risk is None else 1 - risk
    subject, missed = forecast.subject, _misses(forecast)
    is_other = options["gpu_profile_id"] != chosen["gpu_profile_id"]
    possible = options[is_other | (options["replicas"] == chosen["replicas"])]
    rows, best = [], best_by_profile(possible, wanted)
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


def find_safest(options: pd.DataFrame, chosen: Mapping[str, Any]) -> Row | None:
    """Return the cheapest option of probability `SAFE` or more, if the chosen one has less."""
    if chosen["probability_met"] is None or chosen["probability_met"] >= SAFE:
        return None
    safe = frame_rows(choose(options, 1 - SAFE))[0]
    return safe if safe["gpu_profile_id"] is not None else None


def list_frontier(options: pd.DataFrame, risk: float | None = None) -> list[Row]:
    """Return the options that no cheaper one matches in probability as shown, cheapest first.

    Those of less than `LISTED`, or than the risk allows, are left out, and those whose replicas
    would get more users than they are likely to serve within the limits.
    """
    least = LISTED if risk is None else min(LISTED, 1 - risk)
    is_overloaded = options["users_per_replica"] > options["users_hi"]
    ordered = options[(options["probability_met"] >= least) & ~is_overloaded].sort_values(
        ["usd_per_hour", "probability_met", "devices"], ascending=[True, False, True], kind="stable"
    )
    shown = ordered["probability_met"].map(shown_chance)
    return frame_rows(ordered.loc[shown > shown.cummax().shift(fill_value=-1), _OPTION])


def find_nearest_miss(forecast: Forecast, options: pd.DataFrame) -> Row:
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


def _missed(forecast: Forecast, option: Mapping[str, Any]) -> Row:
    """Return an option with its latencies over the limits."""
    ratios = _ratios(forecast, option)
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


def _ratios(forecast: Forecast, option: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return each latency over its limit, by draw; those of requests alone where no replicas do."""
    name, slo = option["gpu_profile_id"], forecast.slo
    if forecast.arrivals is None:
        samples_ms = forecast.draws_at(name, option["users_per_replica"]).samples_ms
        return slo.ratios(samples_ms[:, 0], forecast.lengths[0])
    replicas = option["replicas"] if option["probability_met"] else MOST_REPLICAS
    found = forecast.arrivals.latencies(slo, name, replicas)
    return {
        name: np.nan_to_num(found[name], nan=_NEVER_MS) / limit.limit_ms
        for name, limit in slo.limits.items()
    }


def list_changes(forecast: Forecast, decision: str, risk: float | None) -> list[Row]:
    """Return what would be chosen for other SLOs."""
    slos = {name: forecast.slo.scaled(**change) for name, change in _CHANGES.items()}
    return [
        {"change": name, **choose_option(forecast, forecast.options(slo), slo, decision, risk)}
        for name, slo in slos.items()
    ]


_N_NEAREST = 2


def find_nearest(subject: Subject, profile_id: str, slo: SLO) -> list[Row]:
    """Return the measured LLMs most similar to the one that is asked about, on a GPU profile.

    Those executed alike come first, then those on the asked engine, then those of nearest weight
    bytes as they were served; of each the requests whose lengths are nearest to the asked ones,
    and of several ways to serve these the one that served the most users. Each has
    `users_per_replica`, the most users that it was measured to serve within these limits, those
    lengths, and the `engine`, `engine_version` and `precision` of those points. Points without
    lengths are left out.
    """
    known, execution = subject.source.known, subject.execution
    points = judged(known.points[known.points["gpu_profile_id"] == profile_id], slo)
    own = points[points["gpu_profile_id"] == profile_id].dropna(subset=["users", *LENGTHS])
    fixed = [each.source for each in known.descriptions if each.lengths == "fixed"]
    rows = []
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
                "users_per_replica": u_max(part, slo),
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

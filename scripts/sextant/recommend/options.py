"""What an answer lists of its options: GPU profiles, the frontier of prices, misses and changes.

And the nearest measurements: what was measured of similar LLMs on the recommended GPU profile.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.ask.case import Case
from sextant.ask.forecast import Forecast
from sextant.ask.probe import RATE
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.decide.decision import FAIR, LISTED, SAFE, best_by_profile, choose
from sextant.decide.sizing import u_max
from sextant.facts.gpu import GIB
from sextant.facts.llm import precision_of, served
from sextant.facts.slo import METRICS, SLO
from sextant.law.calibration import Calibration
from sextant.pages.words import chance, number, per_second, plural, usd_words
from sextant.points.frame import BASES, LENGTHS, SERVING, judged, limited
from sextant.recommend.recommendation import (
    Change,
    FarMeasurement,
    NearestMiss,
    NearMeasurement,
    PredictedOutcome,
    WeighedRow,
    worst_metric,
)
from sextant.recommend.weighing import Weighing, weighed_rows

_LOOSER = "limits × 1.25"
_CHANGES = {
    "limits × 0.8": {"limits": 0.8},
    _LOOSER: {"limits": 1.25},
    "half the load": {"load": 0.5},
    "twice the load": {"load": 2.0},
}
_N_NEAREST = 2
"""Measured LLMs that are listed."""
_N_OWN = 3
"""GPU profiles on which measurements of the LLM itself are listed."""


def far_measurements(calibration: Calibration | None, slo: SLO) -> list[FarMeasurement]:
    """Return the measurements of the LLM far from the law, the farthest first."""
    if calibration is None:
        return []
    rows = calibration.points.set_index(["gpu_profile_id", "users"])
    far = []
    for contradiction in calibration.contradictions():
        row = rows.loc[(contradiction.gpu_profile_id, contradiction.users)]
        metric = "ttft" if contradiction.latency == "nttft" else _per_token(row, slo)
        name = "ttft_basis" if metric == "ttft" else "itl_basis"
        basis_ms = float(row[f"{name}_ms"]) if row[name] else None
        rate_rps = float(row.get(RATE, math.nan))
        stated_rps = None if math.isnan(rate_rps) else rate_rps
        far.append(FarMeasurement(contradiction, metric, row[name] or None, basis_ms, stated_rps))
    return far


def _per_token(row: pd.Series, slo: SLO) -> str:
    """Return which time per token a measurement is of: the limited one, where it has both."""
    of_limits = "tpot" if "tpot" in slo.limits and "itl" not in slo.limits else "itl"
    stated = [name for name in ("itl", "tpot") if row.get(f"own_{name}_ms", math.nan) > 0]
    return of_limits if of_limits in stated or not stated else stated[0]


def broken_notes(forecast: Forecast) -> list[str]:
    """Return which load of a probe broke a limit on each GPU profile, the lowest one each."""
    if forecast.calibration is None or forecast.case.probe is None:
        return []
    slo = forecast.slo
    broken = forecast.calibration.broken(slo).sort_values("users")
    broken = broken[broken["gpu_profile_id"].isin(forecast.case.probe["gpu_profile_id"])]
    lowest = broken.drop_duplicates("gpu_profile_id")
    latencies_ms = limited(lowest, slo)
    notes = []
    for index, row in enumerate(frame_rows(lowest)):
        over = [
            f"{METRICS[name]} {number(float(values[index]))} ms{_basis_words(row, name)}"
            for name, values in latencies_ms.items()
            if values[index] > slo.limits[name].limit_ms
        ]
        rate_rps = row.get(RATE)
        load = plural(row["users"], "user") if rate_rps is None else per_second(rate_rps)
        notes.append(
            f"Measured on {row['gpu_profile_id']}: {load} broke a limit ({', '.join(over)}), so no "
            "replica is offered as many."
        )
    return notes


def _basis_words(row: Row, metric: str) -> str:
    """Return what a latency of a measurement is estimated from; nothing where it was measured."""
    of_first, of_later = BASES
    basis = {"ttft": of_first, "nttft": of_first, "itl": of_later, "tpot": of_later}.get(metric)
    if basis is None or not row[basis]:
        return ""
    return f", estimated from a measured {row[basis]} of {number(row[f'{basis}_ms'])} ms"


def choose_option(weighing: Weighing, options: pd.DataFrame) -> Option:
    """Return the chosen option (`Weighing.choose`); all None where there is none."""
    return option_of(weighing.choose(options, weighing.slo))


def option_for(weighing: Weighing, slo: SLO) -> Option:
    """Return the option that is chosen for another SLO; all None where there is none."""
    return option_of(weighing.choose(weighing.options(slo), slo))


def option_of(best: pd.DataFrame) -> Option:
    """Return the option of the only row that `choose` returns for one LLM."""
    (row,) = frame_rows(best)
    return Option.of(row)


def list_profiles(
    weighing: Weighing, options: pd.DataFrame, chosen: Option
) -> list[PredictedOutcome]:
    """Return one outcome per candidate, cheapest first, excluded profiles last.

    A profile has its cheapest option of the wanted probability, else its most likely one, which is
    `too_slow` below `LISTED`. The chosen profile has the chosen option. The misses are those of
    median latencies at the fewest users.
    """
    case = weighing.case
    wanted = SAFE if case.question.risk is None else 1 - case.question.risk
    most_users = weighing.most_users_tried
    misses = weighing.misses_by_profile()
    is_other = options["gpu_profile_id"] != chosen.gpu_profile_id
    possible = options[is_other | (options["replicas"] == chosen.replicas)]
    outcomes = []
    for row in weighed_rows(best_by_profile(possible, wanted)):
        status = "unsure"
        if row.probability_met >= wanted:
            status = "meets"
        elif row.probability_met < LISTED:
            status = "too_slow"
        outcomes.append(
            PredictedOutcome(
                option=row.option,
                status=status,
                misses=misses[row.gpu_profile_id],
                most_users_tried=most_users,
                is_gpu_measured=case.is_gpu_measured(row.gpu_profile_id),
                is_simulated=weighing.sizer is not None,
                expected_utility=row.expected_utility,
                users_served=row.users_served,
                replicas_lo=row.replicas_lo,
                replicas_hi=row.replicas_hi,
            )
        )
    outcomes.sort(key=lambda outcome: (outcome.usd_per_hour, -(outcome.probability_met or 0.0)))
    return outcomes + [
        PredictedOutcome(
            option=Option(profile_id),
            status="does_not_fit",
            reason=reason,
            most_users_tried=most_users,
            is_gpu_measured=case.is_gpu_measured(profile_id),
        )
        for profile_id, reason in case.excluded.items()
    ]


def find_safest(options: pd.DataFrame, chosen: Option) -> Option | None:
    """Return the cheapest option of probability `SAFE` or more, if the chosen one has less."""
    if chosen.probability_met is None or chosen.probability_met >= SAFE:
        return None
    safest = option_of(choose(options, 1 - SAFE))
    return safest if safest.gpu_profile_id is not None else None


def offered_options(rows: Iterable[WeighedRow]) -> list[Option]:
    """Return the options whose replicas are likely to serve their users, fewer devices first."""
    return [
        row.option
        for row in sorted(rows, key=lambda row: row.devices)
        if row.users_hi is None or (row.users_per_replica or 0) <= row.users_hi
    ]


def find_nearest_miss(weighing: Weighing, options: Sequence[WeighedRow]) -> NearestMiss:
    """Return the option that is most likely to meet the SLO, and what it lacks.

    Of equally likely options it is the one whose limits need the smallest factor.
    """
    limits = weighing.slo.limits
    highest = max(row.probability_met for row in options)
    likeliest = [row for row in options if row.probability_met == highest]
    likeliest.sort(key=lambda row: row.usd_per_hour if highest else row.users_per_replica or 0)
    first_by_profile: dict[str, WeighedRow] = {}
    for row in likeliest:
        first_by_profile.setdefault(row.gpu_profile_id, row)

    misses = []
    for profile_id, row in first_by_profile.items():
        ratios = weighing.ratios_by_draw(
            profile_id, row.replicas, row.users_per_replica, bool(row.probability_met)
        )
        worst = np.max([*ratios.values()], axis=0)
        if np.isinf(worst).mean() >= 1 - SAFE:  # these replicas are saturated in many draws
            ratios = weighing.ratios_by_draw(profile_id, row.replicas, None, False)
            worst = np.max([*ratios.values()], axis=0)
        medians = {metric: float(np.median(values)) for metric, values in ratios.items()}
        misses.append(
            NearestMiss(
                row.option,
                medians,
                {metric: ratio * limits[metric].limit_ms for metric, ratio in medians.items()},
                worst_metric(medians),
                fair_factor=_factor_of(worst, FAIR),
                safe_factor=_factor_of(worst, SAFE),
            )
        )
    return min(misses, key=lambda miss: miss.fair_factor)


def _factor_of(ratios: np.ndarray, share: float) -> float:
    """Return what a share of the ratios does not exceed; infinite where that many are."""
    if np.isinf(np.quantile(ratios, share, method="higher")):
        return math.inf
    return float(np.quantile(ratios, share))


def list_changes(weighing: Weighing) -> list[Change]:
    """Return what would be chosen for other limits and other loads."""
    slos = {}
    for name, change in _CHANGES.items():
        with suppress(InputError):  # beyond what an SLO may ask for
            slos[name] = weighing.slo.scaled(**change)
    return [Change(name, option_for(weighing, slo)) for name, slo in slos.items()]


def cliff_notes(changes: Sequence[Change], chosen: Option) -> list[str]:
    """Return what to say where limits a quarter looser halve the price."""
    usd = chosen.usd_per_hour
    notes = []
    for change in changes:
        option = change.option
        if change.name != _LOOSER or not usd or option.usd_per_hour is None:
            continue
        if 2 * option.usd_per_hour <= usd:
            notes.append(
                f"Limits a quarter looser cost half or less: {option.replicas} × "
                f"{option.gpu_profile_id} = {usd_words(option.usd_per_hour)}, with probability "
                f"{chance(option.probability_met or 0.0)}."
            )
    return notes


def nearest_measurements(case: Case, profile_id: str, slo: SLO) -> list[NearMeasurement]:
    """Return the measured LLMs most similar to the asked one, on a GPU profile.

    LLMs executed alike come first, then those on the asked engine, then those of nearest weight
    bytes as they were served. Of each LLM the requests of the nearest lengths count, and of several
    ways to serve these the one that served the most users within the limits. Points without
    lengths are left out.
    """
    points = case.source.characterization.points
    nearest = _nearest_by_llm(case, points[points["gpu_profile_id"] == profile_id], slo)
    return [*nearest.values()][:_N_NEAREST]


def own_measurements(forecast: Forecast, profile_id: str | None, slo: SLO) -> list[NearMeasurement]:
    """Return what was measured of the LLM itself and moved its law, one row a GPU profile:
    `profile_id` first, then others by name."""
    case = forecast.case
    if forecast.calibration is None:
        return []
    points = case.trusted_points
    points = points[points["llm_id"] == case.llm_id]
    measured_ids = sorted(
        {*forecast.calibration.points["gpu_profile_id"]},
        key=lambda name: (name != profile_id, name),
    )
    measurements: list[NearMeasurement] = []
    for measured_id in measured_ids[:_N_OWN]:
        of_profile = points[points["gpu_profile_id"] == measured_id]
        measurements += _nearest_by_llm(case, of_profile, slo).values()
    return measurements


def _nearest_by_llm(case: Case, points: pd.DataFrame, slo: SLO) -> dict[str, NearMeasurement]:
    """Return the measurement of each LLM that is the most like the question, nearest LLMs first."""
    measurements = _measurements(case, points, slo)

    def distance_of(near: NearMeasurement) -> tuple[bool, bool, float, float, int]:
        weights = abs(math.log(near.weights_gib * GIB / case.llm.weight_bytes))
        lengths = np.log([near.input_tokens, near.output_tokens] / case.lengths)
        is_other_engine = near.engine not in (None, case.serving.engine)
        length_distance = float(np.abs(lengths).sum())
        is_other = not near.is_executed_alike
        return is_other, is_other_engine, weights, length_distance, -near.users_per_replica

    nearest_by_llm: dict[str, NearMeasurement] = {}
    for near in sorted(measurements, key=distance_of):
        nearest_by_llm.setdefault(near.llm_id, near)
    return nearest_by_llm


def _measurements(case: Case, points: pd.DataFrame, slo: SLO) -> list[NearMeasurement]:
    """Return what points say of the limits, one for each LLM and way to serve it."""
    fixed = case.source.fixed
    execution = case.execution
    points = judged(points, slo)
    points = points.dropna(subset=["users", *LENGTHS])
    measurements = []
    for _, part in points.groupby(["llm_id", *SERVING], dropna=False):
        if fixed and part["source"].isin(fixed).all():
            distance = np.abs(np.log(part[LENGTHS].to_numpy(float) / case.lengths)).sum(axis=1)
            part = part[distance <= distance.min() + 1e-9]
        row = part.head(1)
        first = next(row.astype(object).where(row.notna(), None).itertuples())
        llm = served(case.measured_llms[first.llm_id], first.precision, first.kv_precision)
        measurements.append(
            NearMeasurement(
                first.llm_id,
                first.gpu_profile_id,
                weights_gib=llm.weight_bytes / GIB,
                precision=precision_of(llm),
                engine=first.engine,
                engine_version=first.engine_version,
                execution=execution[first.llm_id],
                is_executed_alike=execution[first.llm_id] == execution[case.llm_id],
                users_per_replica=u_max(part, slo),
                most_users_tried=int(part["users"].max()),
                input_tokens=float(part[LENGTHS[0]].median()),
                output_tokens=float(part[LENGTHS[1]].median()),
            )
        )
    return measurements

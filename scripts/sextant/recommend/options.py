"""What an answer lists of its options: GPU profiles, the frontier of prices, misses and changes."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.decide.decision import FAIR, LISTED, SAFE, best_by_profile, choose
from sextant.pages.words import chance, shown_chance
from sextant.recommend.recommendation import (
    Change,
    Misses,
    NearestMiss,
    PredictedOutcome,
    UsersServed,
    worst_metric,
)
from sextant.recommend.weighing import Weighing

_LOOSER = "limits × 1.25"
_CHANGES = {
    "limits × 0.8": {"limits": 0.8},
    _LOOSER: {"limits": 1.25},
    "half the load": {"load": 0.5},
    "twice the load": {"load": 2.0},
}


def choose_option(weighing: Weighing, options: pd.DataFrame) -> Option:
    """Return the chosen option (`Weighing.choose`); all None where there is none."""
    return option_of(weighing.choose(options, weighing.slo))


def option_of(best: pd.DataFrame) -> Option:
    """Return the option of the one row that `choose` returns for one LLM."""
    (row,) = frame_rows(best)
    return Option.of(row)


def list_profiles(
    weighing: Weighing, options: pd.DataFrame, chosen: Option
) -> list[PredictedOutcome]:
    """Return one outcome per candidate, cheapest first, excluded profiles last.

    A profile has its cheapest option of the wanted probability, else its most likely one, which is
    `too_slow` below `LISTED`. The chosen profile has the chosen option. What it misses by is of
    median latencies at the fewest users.
    """
    case = weighing.case
    risk = case.question.risk
    X = weighing.draws.X
    most_users = int(X["users"].max())
    misses = _misses_by_profile(weighing)
    is_other = options["gpu_profile_id"] != chosen.gpu_profile_id
    possible = options[is_other | (options["replicas"] == chosen.replicas)]
    outcomes = []
    for row in frame_rows(best_by_profile(possible, SAFE if risk is None else 1 - risk)):
        option = Option.of(row)
        profile_id = str(option.gpu_profile_id)
        status = "unsure"
        if row["is_wanted"]:
            status = "meets"
        elif row["probability_met"] < LISTED:
            status = "too_slow"
        users = [row["users_lo"], row["users_median"], row["users_hi"]]
        outcomes.append(
            PredictedOutcome(
                option=option,
                status=status,
                misses=misses[profile_id],
                most_users_tried=most_users,
                is_gpu_measured=case.is_gpu_measured(profile_id),
                is_simulated=weighing.sizer is not None,
                expected_utility=row["expected_utility"],
                users_served=None if users[0] is None else UsersServed(*users),
                replicas_lo=row.get("replicas_lo"),
                replicas_hi=row.get("replicas_hi"),
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


def _misses_by_profile(weighing: Weighing) -> dict[str, Misses]:
    """Return by how much median latencies at the fewest users miss their limits."""
    X, samples_ms = weighing.draws
    fewest_users = int(X["users"].min())
    is_lightest = (X["users"] == fewest_users).to_numpy()
    medians_ms = np.median(samples_ms[:, is_lightest], axis=0)
    ratios = weighing.slo.ratios(medians_ms, weighing.case.lengths)
    return {
        profile_id: Misses(
            fewest_users=fewest_users,
            ratios={metric: float(values[index]) for metric, values in ratios.items()},
            limit_ratio=float(max(values[index] for values in ratios.values())),
        )
        for index, profile_id in enumerate(X.loc[is_lightest, "gpu_profile_id"])
    }


def find_safest(options: pd.DataFrame, chosen: Option) -> Option | None:
    """Return the cheapest option of probability `SAFE` or more, if the chosen one has less."""
    if chosen.probability_met is None or chosen.probability_met >= SAFE:
        return None
    safest = option_of(choose(options, 1 - SAFE))
    return safest if safest.gpu_profile_id is not None else None


def list_frontier(options: pd.DataFrame, risk: float | None = None) -> list[Option]:
    """Return the options that no cheaper one matches in probability as shown, cheapest first.

    Options of less than `LISTED`, or than the risk allows, are left out. So are options whose
    replicas would get more users than they are likely to serve within the limits.
    """
    least = LISTED if risk is None else min(LISTED, 1 - risk)
    is_overloaded = options["users_per_replica"] > options["users_hi"]
    ordered = options[(options["probability_met"] >= least) & ~is_overloaded].sort_values(
        ["usd_per_hour", "probability_met", "devices"], ascending=[True, False, True], kind="stable"
    )
    shown = ordered["probability_met"].map(shown_chance)
    is_likelier = shown > shown.cummax().shift(fill_value=-1)
    return [Option.of(row) for row in frame_rows(ordered[is_likelier])]


def find_nearest_miss(weighing: Weighing, options: pd.DataFrame) -> NearestMiss:
    """Return the option that is most likely to meet the SLO, and what it lacks.

    Of equally likely options it is the one whose limits need the smallest factor.
    """
    limits = weighing.slo.limits
    most = options["probability_met"].max()
    likely = options[options["probability_met"] == most]
    likely = likely.sort_values("usd_per_hour" if most else "users_per_replica", kind="stable")
    misses = []
    for option in map(Option.of, frame_rows(likely.drop_duplicates("gpu_profile_id"))):
        ratios = weighing.ratios_by_draw(
            str(option.gpu_profile_id),
            option.replicas or 0,
            option.users_per_replica,
            bool(option.probability_met),
        )
        worst = np.max([*ratios.values()], axis=0)
        medians = {metric: float(np.median(values)) for metric, values in ratios.items()}
        misses.append(
            NearestMiss(
                option,
                medians,
                {metric: ratio * limits[metric].limit_ms for metric, ratio in medians.items()},
                worst_metric(medians),
                fair_factor=float(np.quantile(worst, FAIR)),
                safe_factor=float(np.quantile(worst, SAFE)),
            )
        )
    return min(misses, key=lambda miss: miss.fair_factor)


def list_changes(weighing: Weighing) -> list[Change]:
    """Return what would be chosen for other limits and other loads."""
    slos = {}
    for name, change in _CHANGES.items():
        with suppress(InputError):  # beyond what an SLO may ask for
            slos[name] = weighing.slo.scaled(**change)
    return [
        Change(name, option_of(weighing.choose(weighing.options(slo), slo)))
        for name, slo in slos.items()
    ]


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
                f"{option.gpu_profile_id} = {option.usd_per_hour:.2f} USD/h, with probability "
                f"{chance(option.probability_met or 0.0)}."
            )
    return notes

"""Choose GPU profile and replicas together, under uncertainty.

LLM-Pilot's eq. 1-3 take predictions for the truth. Here each draw of the latencies is a possible
truth, and an option is worth the mean over the draws of what the score would give for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd

from sextant.decide import sizing
from sextant.decide.sizing import RATE_STEPS, in_steps, size_replicas
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import ENDS, SLO
from sextant.points.frame import IDENTIFIERS, is_refused, limited, replica_load
from sextant.predict.predictor import Draws

REWARD = 1.0
"""Worth of an SLO met, in units of the cheapest deployment's price: S/O is highest where a success
is worth S + O (the derivative of eq. 7 with S = 1 - O), about 1 for any good predictor."""
SAFE = 0.9
"""Probability at which a GPU profile's price is stated, unless a risk is given."""
FAIR = 0.5
"""Least probability of a recommended option: below it a broken limit is likelier than none."""
LISTED = 0.2
"""Least probability of a listed option, unless the risk that is asked for allows less."""
_RATE_LOADS = 40
_LOADS_PER_DOUBLING = 10
"""Numbers of users; 1, 2, 4 and so on, which are measured, are then among them."""
_PROBED_LOADS = 8
MOST_COUNTS = 96
"""Where more numbers of replicas compete, they rise by a constant factor."""


class MeasuredDraws(NamedTuple):
    """Draws of what the measured latencies of some points may be, for one SLO."""

    X: pd.DataFrame  #: `llm_id, gpu_profile_id, users`.
    limited_ms: Mapping[str, np.ndarray]
    """What each limit is compared with, by metric, shape (draws, points)."""
    is_refused: np.ndarray  #: Whether too many requests failed, shape (points,).
    load: np.ndarray  #: What a replica carries, in the SLO's unit, shape (points,).

    def of(self, rows: np.ndarray) -> "MeasuredDraws":
        """Return the draws of some rows."""
        limited_ms = {name: values[:, rows] for name, values in self.limited_ms.items()}
        return MeasuredDraws(self.X[rows], limited_ms, self.is_refused[rows], self.load[rows])

    def is_met(self, slo: SLO) -> np.ndarray:
        """Return whether each point meets all limits in each draw."""
        met: np.ndarray = slo.are_met(self.limited_ms) & ~self.is_refused
        return met

    def carried(self, slo: SLO) -> np.ndarray:
        """Return the load of each point, the same in all draws: it was measured."""
        return self.load

    def usual_load(self, slo: SLO) -> np.ndarray:
        """Return the load of each point, as `carried`."""
        return self.load


def sustained(draws: Draws | MeasuredDraws, slo: SLO, *, of_load: bool = False) -> pd.DataFrame:
    """Return the most users, or load, that a replica serves (eq. 3), draws x (LLM, profile)."""
    users = draws.X["users"].to_numpy()
    is_met = draws.is_met(slo)
    columns = {}
    carried = draws.carried(slo) if of_load else users
    serve = sizing.load_served if of_load else sizing.users_served
    for pair, rows in draws.X.reset_index(drop=True).groupby(IDENTIFIERS).indices.items():
        rising = rows[np.argsort(users[rows])]
        columns[pair] = serve(carried[..., rising], is_met[:, rising])
    return pd.DataFrame(columns).rename_axis(columns=IDENTIFIERS)


def loads(slo: SLO, most_users: int) -> list[int]:
    """Return the numbers of users in flight at a replica that a decision has to know of.

    They rise by a constant factor, whatever the load is: answers to several loads rest on the same
    draws. Users between two of these numbers are judged as the higher one. A request rate needs
    fewer numbers than a number of users.
    """
    if slo.users is None:
        users = np.geomspace(1, most_users, _RATE_LOADS)
    else:
        n_steps = int(_LOADS_PER_DOUBLING * np.log2(most_users))
        users = np.append(np.exp2(np.arange(n_steps + 1) / _LOADS_PER_DOUBLING), most_users)
    return [*map(int, np.unique(users.round()))]


def weigh(
    draws: Draws | MeasuredDraws, profiles: Mapping[str, GPUProfile], slo: SLO
) -> pd.DataFrame:
    """Return every option of each LLM: a profile with a number of replicas, and its worth.

    Columns: `llm_id, gpu_profile_id, replicas, devices, users_per_replica` (in flight at each
    replica), `usd_per_hour, probability_met, expected_utility`; and of the profile the 5%, 50% and
    95% quantiles of the most users that a replica serves, `users_lo, users_median, users_hi`, and
    the median of the most load, in the SLO's unit, `load_median`.

    Options have the numbers of replicas that some number of users per replica in `draws` asks for;
    with a request rate, the numbers that some draw needs.
    """
    parts = []
    for llm_id in dict.fromkeys(draws.X["llm_id"]):
        is_of_llm = (draws.X["llm_id"] == llm_id).to_numpy()
        llm_draws = draws if is_of_llm.all() else draws.of(is_of_llm)
        users = load = sustained(llm_draws, slo)[llm_id]
        if slo.users is None:
            carried = sustained(llm_draws, slo, of_load=True)[llm_id]
            with np.errstate(divide="ignore"):
                load = np.exp2(in_steps(carried) / RATE_STEPS)
        needed = pd.DataFrame(size_replicas(slo.load, load), columns=users.columns)
        counts = numbers_of_replicas(llm_draws.X["users"].unique(), needed.to_numpy(), slo)

        ends = np.quantile(users, (0.05, 0.5, 0.95), axis=0, method="inverted_cdf")
        of_profile = dict(zip(("users_lo", "users_median", "users_hi"), ends, strict=True))
        of_profile["load_median"] = np.median(load, axis=0)
        options = _options(llm_id, needed, counts, profiles, of_profile)
        in_flight = _users_in_flight(llm_draws, needed.columns, counts, slo)
        probability = options["n_met"] / len(needed)
        parts.append(options.assign(users_per_replica=in_flight, probability_met=probability))
    return pd.concat(parts, ignore_index=True)


def weigh_needed(
    llm_id: str, needed: pd.DataFrame, profiles: Mapping[str, GPUProfile], slo: SLO
) -> pd.DataFrame:
    """Return what `weigh` returns, of one LLM whose replicas were simulated; users are NaN.

    `needed` has the replicas that meet the SLO in each draw, a column per profile; infinite where
    no number does.
    """
    counts = numbers_of_replicas(np.empty(0), needed.to_numpy(float), slo)
    ends = np.quantile(needed.to_numpy(float), (0.05, 0.95), axis=0, method="inverted_cdf")
    low, high = np.where(np.isfinite(ends), ends, np.nan)
    options = _options(llm_id, needed, counts, profiles, {"replicas_lo": low, "replicas_hi": high})
    unknown = ("users_per_replica", "users_lo", "users_median", "users_hi", "load_median")
    probability = options["n_met"] / len(needed)
    return options.assign(probability_met=probability, **dict.fromkeys(unknown, np.nan))


def _options(
    llm_id: str,
    needed: pd.DataFrame,
    counts: np.ndarray,
    profiles: Mapping[str, GPUProfile],
    of_profile: Mapping[str, np.ndarray],
) -> pd.DataFrame:
    """Return a row per profile and number of replicas.

    `n_met` is the number of draws in which the option meets the SLO.
    """
    price = np.array([profiles[name].usd_per_hour for name in needed])
    ratios = price_ratios(needed.to_numpy(float), price, counts)
    n_counts = len(counts)
    options = pd.DataFrame(
        {
            "llm_id": llm_id,
            "gpu_profile_id": np.repeat(needed.columns.to_numpy(str), n_counts),
            "replicas": np.tile(counts, len(price)),
            "usd_per_hour": np.round(price[:, None] * counts, 9).ravel(),
            "n_met": np.isfinite(ratios).sum(axis=0).ravel(),
            "expected_utility": worth_of(ratios).mean(axis=0).ravel(),
            **{name: np.repeat(values, n_counts) for name, values in of_profile.items()},
        }
    )
    return with_devices(options, profiles)


def with_devices(options: pd.DataFrame, profiles: Mapping[str, GPUProfile]) -> pd.DataFrame:
    """Return options with `devices`, the number of GPUs of all their replicas."""
    n_gpus = {name: profile.n_gpus for name, profile in profiles.items()}
    return options.assign(devices=options["gpu_profile_id"].map(n_gpus) * options["replicas"])


def price_ratios(needed: np.ndarray, price: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the price of each option over the price of the cheapest one that meets the SLO.

    The result has shape (draws, profiles, counts); it is infinite where the option does not meet
    the SLO.

    Args:
        needed: fewest replicas that meet the SLO, (draws, profiles); infinite where none do.
        price: of one replica, in USD per hour, (profiles,).
        counts: numbers of replicas, (counts,).
    """
    cheapest = (needed * price).min(axis=1)
    # A draw in which no profile serves a user cannot be won, nor judged.
    possible = np.where(np.isfinite(cheapest), cheapest, 1.0)[:, None, None]
    usd_per_hour = np.round(price[:, None] * counts, 9)
    return np.where(needed[..., None] <= counts, usd_per_hour / possible, np.inf)


def worth_of(ratios: np.ndarray) -> np.ndarray:
    """Return what options are worth by their price ratios; nothing where the SLO is not met."""
    return np.where(np.isfinite(ratios), 1 + REWARD - ratios, 0.0)


def numbers_of_replicas(users: np.ndarray, needed: np.ndarray, slo: SLO) -> np.ndarray:
    """Return the numbers of replicas that compete.

    With a load in users they are the replicas for each number of `users` at a replica. With a
    request rate they are the replicas that some draw and profile needs (`needed`).
    """
    if slo.users is not None:
        return np.unique(size_replicas(slo.users, users)).astype(int)
    tried = np.unique(needed[np.isfinite(needed)]).astype(int)
    if len(tried) > MOST_COUNTS:
        tried = np.unique(np.geomspace(tried[0], tried[-1], MOST_COUNTS).round().astype(int))
    return tried if len(tried) else np.ones(1, dtype=int)


def _users_in_flight(
    draws: Draws | MeasuredDraws, names: Iterable[str], counts: np.ndarray, slo: SLO
) -> np.ndarray:
    """Return the users in flight at each replica, by profile and number of replicas.

    With a request rate they are the fewest users that carry it at median latencies, by Little's
    law; the most users where none do.
    """
    if slo.users is not None:
        return np.tile(np.ceil(slo.users / counts).astype(int), len([*names]))
    users = draws.X["users"].to_numpy()
    carried = draws.usual_load(slo)
    rows_of = draws.X.reset_index(drop=True).groupby("gpu_profile_id").indices
    parts = []
    for name in names:
        rising = rows_of[name][np.argsort(users[rows_of[name]])]
        level = np.searchsorted(np.maximum.accumulate(carried[rising]), slo.load / counts)
        parts.append(users[rising[np.minimum(level, len(rising) - 1)]])
    return np.concatenate(parts)


def choose(options: pd.DataFrame, risk: float | None = None) -> pd.DataFrame:
    """Return one row per LLM: the option of the highest expected utility (`weigh`).

    With a risk it is the cheapest option that meets the SLO with probability 1 - risk or more; an
    LLM without such an option has its name alone. Ties go to the cheaper option, then to the
    likelier one, then to fewer devices.
    """
    met = options["probability_met"]
    order = {name: name == "usd_per_hour" for name in ("usd_per_hour", "probability_met")}
    if risk is None:
        return sizing.best_of_each(options, met > 0, {"expected_utility": False, **order})
    return sizing.best_of_each(options, met >= 1 - risk, order)


def best_by_profile(options: pd.DataFrame, wanted: float) -> pd.DataFrame:
    """Return one row per GPU profile of one LLM: its best option.

    It is the cheapest one of the wanted probability or more (`is_wanted`), else the most likely.
    """
    options = options.assign(is_wanted=options["probability_met"] >= wanted)
    likely = options["probability_met"].where(~options["is_wanted"], wanted)
    ordered = options.assign(likely=-likely).sort_values(["likely", "usd_per_hour"], kind="stable")
    best = ordered.drop(columns="likely").drop_duplicates("gpu_profile_id")
    return best.sort_values("gpu_profile_id", ignore_index=True)


def best_probe(draws: Draws, profiles: Mapping[str, GPUProfile], slos: Sequence[SLO] = ()) -> str:
    """Return the GPU profile of one LLM whose measurement is expected to tell most.

    Its log-latencies explain, by linear regression over the draws, the largest part of the variance
    of all log-latencies, its own included. With the SLOs of the answer, a profile's log-latencies
    count as often as the profile is the cheapest one that meets an SLO in a draw.
    """
    names = sorted(draws.X["gpu_profile_id"].unique())
    weights = pd.Series(0.0 if slos else 1.0, names)
    for slo in slos:
        served = sustained(draws, slo, of_load=True).droplevel("llm_id", axis=1)
        price = pd.Series({name: profiles[name].usd_per_hour for name in served})
        cost = served.apply(lambda load, slo=slo: size_replicas(slo.load, load)) * price
        won = cost.eq(cost.min(axis=1), axis=0) & np.isfinite(cost)
        # Draws in which no profile serves a user count alike for all.
        weights += (won.mean() + 1 / len(won)) / len(slos)
    kept = draws.X["users"].isin(probed(draws.X["users"])).to_numpy()
    draws = Draws(draws.X[kept], draws.samples_ms[:, kept])
    logs = np.log(draws.samples_ms).reshape(len(draws.samples_ms), -1)
    logs = logs - logs.mean(axis=0)
    products = logs.T @ logs
    # Each row of `X` has two columns of `logs`, its nTTFT and its ITL.
    of = np.repeat(draws.X["gpu_profile_id"].to_numpy(str), 2)
    gain = {}
    for probe in names:
        seen = products[of == probe]
        inverse = np.linalg.pinv(seen[:, of == probe], rcond=1e-10, hermitian=True)
        variance = (seen * (inverse @ seen)).sum(axis=0)
        gain[probe] = sum(weights[name] * variance[of == name].mean() for name in names)
    return str(max(names, key=gain.__getitem__))


def probed(users: Sequence[int]) -> list[int]:
    """Return a few of these loads: they tell as much as all, and the regressions stay small."""
    levels = np.unique(users)
    spread = np.linspace(0, len(levels) - 1, min(_PROBED_LOADS, len(levels))).round().astype(int)
    return [*map(int, levels[spread])]


N_DRAWS = 1000
_Z = 1.6448536269514722  # Half the width of a normal's 90% interval, in standard deviations.


def measured_draws(latencies: pd.DataFrame, slo: SLO, seed: int) -> MeasuredDraws | None:
    """Return draws of what measured latencies (`judged`) may be; None if no interval is known.

    A latency's logarithm is normal below and above what was measured, each side as wide as the
    interval says. Where few requests leave the upper end open, a point is taken to be no slower
    than the next larger load on the same GPU profile; without a larger load it may be anything.
    Each point has its own random stream, seeded by its name.
    """
    values, low, high = (limited(latencies, slo, end) for end in ("", *ENDS))
    if all(np.isnan(ends).all() for ends in (*low.values(), *high.values())):
        return None
    keys = latencies[[*IDENTIFIERS, "users"]]
    limited_ms = {}
    for metric, measured_ms in values.items():
        samples_ms = np.empty((N_DRAWS, len(latencies)))
        for row, key in enumerate(keys.itertuples(index=False)):
            name = " ".join(map(str, (*key, f"{metric}_ms"))).encode()
            z = np.random.default_rng([seed, crc32(name)]).standard_normal(N_DRAWS) / _Z
            middle = measured_ms[row]
            bottom = low[metric][row]
            top = high[metric][row]
            # Without a lower end what was measured is the best that it may be.
            below = np.log(middle / bottom) if bottom > 0 else 0.0
            above = np.log(top / middle) if top > 0 else np.inf
            samples_ms[:, row] = middle * np.exp(np.where(z < 0, z * below, z * above))
        pairs = latencies.reset_index(drop=True).groupby(IDENTIFIERS).indices.values()
        for rows in pairs:  # in rising order of users
            for row, larger in zip(rows[-2::-1], rows[:0:-1], strict=True):
                bound = np.maximum(samples_ms[:, larger], measured_ms[row])
                drawn_ms = samples_ms[:, row]
                samples_ms[:, row] = np.where(np.isinf(drawn_ms), bound, drawn_ms)
        limited_ms[metric] = samples_ms
    return MeasuredDraws(keys, limited_ms, is_refused(latencies, slo), replica_load(latencies, slo))


def with_probabilities(
    candidates: pd.DataFrame, draws: MeasuredDraws | None, slo: SLO
) -> pd.DataFrame:
    """Return candidates with `probability_met`: that their replicas carry the load in truth.

    It is NaN without draws, and for a candidate without replicas.
    """
    probability = pd.Series(np.nan, candidates.index, dtype=float)
    if draws is not None and candidates["replicas"].notna().any():
        served = sustained(draws, slo, of_load=True)
        for label, row in candidates[candidates["replicas"].notna()].iterrows():
            needed = size_replicas(slo.load, served[row["llm_id"], row["gpu_profile_id"]])
            probability[label] = (needed <= row["replicas"]).mean()
    return candidates.assign(probability_met=probability)


def most_telling(loads: pd.DataFrame, prices: Mapping[str, float]) -> str:
    """Return the GPU profile whose measurement is expected to tell most of what is needed.

    It explains, by linear regression over the draws, the largest part of the variance of the loads'
    logarithms of all profiles. A profile counts as often as it is the cheapest one in a draw.

    Args:
        loads: in replicas that bear just so much, (draws, profiles); infinite: none are enough.
        prices: of one replica, in USD/h, by profile.
    """
    logs = np.log(loads.to_numpy(float))
    most = np.max(logs, initial=0.0, where=np.isfinite(logs))
    logs = np.where(np.isfinite(logs), logs, most)
    cost = np.ceil(loads.to_numpy(float)) * [prices[name] for name in loads]
    is_won = (cost == cost.min(axis=1, keepdims=True)) & np.isfinite(cost)
    weights = is_won.mean(axis=0) + 1 / len(loads)
    covariance = np.atleast_2d(np.cov(logs.T))
    own = np.maximum(np.diag(covariance), 1e-12)
    gain = (covariance**2 / own[:, None]) @ weights
    return str(loads.columns[int(gain.argmax())])

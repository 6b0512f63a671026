"""Choose GPU profile and replicas together, under uncertainty.

LLM-Pilot's eq. 1-3 take predictions for the truth. Here each draw of the latencies is a
possible truth; an option is a profile and a number of replicas, and what it is worth is the
mean over the draws of what the score would give for it.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
import pandas as pd

from sextant.characterizations.points import IDENTIFIERS
from sextant.decide.recommend import best_of_each, pods, users_served
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.predict.draws import Draws

REWARD = 1.0
"""Worth of an SLO met, in units of the cheapest deployment's price.

S/O is highest where a success is worth S + O (the derivative of eq. 7 with S = 1 - O): about 1
for any good predictor.
"""


def sustained(draws: Draws, slo: SLO) -> pd.DataFrame:
    """Return the most users one replica serves in each draw (eq. 3), draws x (LLM, profile)."""
    users, columns = draws.X["users"].to_numpy(), {}
    for pair, places in draws.X.reset_index(drop=True).groupby(IDENTIFIERS).indices.items():
        ordered = places[np.argsort(users[places])]
        columns[pair] = users_served(users[ordered], draws.samples_ms[:, ordered], slo)
    return pd.DataFrame(columns).rename_axis(columns=IDENTIFIERS)


def weigh(draws: Draws, profiles: Mapping[str, GPUProfile], slo: SLO) -> pd.DataFrame:
    """Return every option of each LLM: a profile with a number of replicas, and its worth.

    Columns: `llm_id, gpu_profile_id, replicas, users_per_replica` (that each one gets),
    `usd_per_hour, probability_met, expected_utility`, and of the profile the 5%, 50% and 95%
    quantiles of the most users a replica serves, `users_lo, users_median, users_hi`.
    Replica counts are those that some tried number of users per replica asks for.

    Args:
        draws: joint draws of the latencies of one or more LLMs.
        profiles: GPU profiles with their prices.
        slo: latency limits and the users to serve.
    """
    served = sustained(draws, slo)
    counts = np.array(sorted({pods(slo.users, int(users)) for users in draws.X["users"].unique()}))
    parts = [_options(llm_id, served[llm_id], profiles, counts, slo) for llm_id in _firsts(served)]
    return pd.concat(parts, ignore_index=True)


def _firsts(served: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(served.columns.get_level_values("llm_id")))


def _options(
    llm_id: str,
    served: pd.DataFrame,
    profiles: Mapping[str, GPUProfile],
    counts: np.ndarray,
    slo: SLO,
) -> pd.DataFrame:
    """Return the options of one LLM; `served` has a column a profile, `counts` the replicas."""
    users = served.to_numpy()
    price = np.array([profiles[name].usd_per_hour for name in served])
    with np.errstate(divide="ignore"):
        needed = np.where(users > 0, np.ceil(slo.users / users), np.inf)
    cheapest = (needed * price).min(axis=1)
    usd_per_hour = np.round(price[:, None] * counts, 9)
    met = needed[..., None] <= counts
    # A draw in which no profile serves anybody cannot be won, nor judged.
    possible = np.where(np.isfinite(cheapest), cheapest, 1.0)[:, None, None]
    worth = np.where(met, 1 + REWARD - usd_per_hour / possible, 0.0)
    low, median, high = np.quantile(users, (0.05, 0.5, 0.95), axis=0, method="inverted_cdf")
    each, n = len(counts), len(price)
    return pd.DataFrame(
        {
            "llm_id": llm_id,
            "gpu_profile_id": np.repeat(served.columns.to_numpy(str), each),
            "replicas": np.tile(counts, n),
            "users_per_replica": np.tile(np.ceil(slo.users / counts).astype(int), n),
            "usd_per_hour": usd_per_hour.ravel(),
            "probability_met": met.mean(axis=0).ravel(),
            "expected_utility": worth.mean(axis=0).ravel(),
            "users_lo": np.repeat(low, each),
            "users_median": np.repeat(median, each),
            "users_hi": np.repeat(high, each),
        }
    )


def choose(options: pd.DataFrame, risk: float | None = None) -> pd.DataFrame:
    """Return one row per LLM: the option of the highest expected utility.

    With a risk, the cheapest option that meets the SLO with probability 1 - risk or more
    instead; an LLM without one has a row with nothing but its name. Ties go to the cheaper
    option, then to the first profile by identifier.

    Args:
        options: what `weigh` returned.
        risk: largest probability of missing the SLO, 0 to 1.
    """
    met = options["probability_met"]
    if risk is None:
        order = {"expected_utility": False, "usd_per_hour": True, "gpu_profile_id": True}
        return best_of_each(options, met > 0, order)
    order = {"usd_per_hour": True, "probability_met": False, "gpu_profile_id": True}
    return best_of_each(options, met >= 1 - risk, order)


def best_probe(draws: Draws, profiles: Mapping[str, GPUProfile], slos: Sequence[SLO] = ()) -> str:
    """Return the GPU profile of one LLM whose measurement would tell most of what matters.

    That is the one whose log-latencies explain, by linear regression over the draws, the
    largest part of the variance of all log-latencies, its own included. With SLOs, those of a
    profile count as often as it is the cheapest one that meets them in a draw.

    Args:
        draws: joint draws of the latencies of one LLM.
        profiles: GPU profiles with their prices.
        slos: the SLOs that the answer is for.
    """
    logs = np.log(draws.samples_ms)
    logs = (logs - logs.mean(axis=0)).reshape(len(logs), len(draws.X), -1)
    names = sorted(draws.X["gpu_profile_id"].unique())
    rows = {name: (draws.X["gpu_profile_id"] == name).to_numpy() for name in names}
    weights = _chances(draws, profiles, slos) if slos else dict.fromkeys(names, 1.0)
    gain = {}
    for probe in names:
        seen = logs[:, rows[probe]].reshape(len(logs), -1)
        explained = seen @ np.linalg.lstsq(seen, logs.reshape(len(logs), -1), rcond=None)[0]
        variance = explained.reshape(logs.shape).var(axis=0).sum(axis=1)
        gain[probe] = sum(weights[name] * variance[rows[name]].mean() for name in names)
    return max(names, key=gain.__getitem__)


def _chances(
    draws: Draws, profiles: Mapping[str, GPUProfile], slos: Sequence[SLO]
) -> dict[str, float]:
    """Return in which part of draws and SLOs each profile is the cheapest that meets them."""
    shares = []
    for slo in slos:
        served = sustained(draws, slo)
        served.columns = served.columns.get_level_values("gpu_profile_id")
        price = pd.Series({name: profiles[name].usd_per_hour for name in served})
        cost = np.ceil(slo.users / served.where(served > 0)) * price
        won = cost.eq(cost.min(axis=1), axis=0) & cost.notna()
        # Draws in which no profile serves a user count alike for all.
        shares.append(won.mean() + 1 / len(won))
    return (reduce(add, shares) / len(slos)).to_dict()

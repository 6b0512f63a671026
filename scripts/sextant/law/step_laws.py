"""Step laws of configurations that nobody need have measured, from the predictor's fit.

The law says what a step takes (`law.step_law`); what the statistic, the trees and the error of a
draw say beyond it scales its terms, until the closed form at one to many users gives the
predictor's own latencies.
"""

from dataclasses import astuple

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.base.errors import InputError
from sextant.law.matching import STEP_TERMS, TermGroup, match_means
from sextant.law.means import BatchLimits, MeanLoad, Means, closed_loop
from sextant.law.posterior import columns_of
from sextant.law.roofline import Roofline
from sextant.law.terms import batch_limits, mean_load, step_law
from sextant.simulate.simulation import NAMES, StepLaw

_USERS = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
_GROUPS: tuple[TermGroup, ...] = (
    ("floor_ms", "dense_ms", "expert_ms"),
    ("sequence_ms", "kv_token_ms"),
    ("prefill_token_ms", "prefill_pair_ms"),
    ("request_ms",),
)
_PRIOR_SD = (0.5, 0.5, 0.5, 1.0)
_NOISE = 0.02
"""How well a scaled law has to give the predictor's latencies, in logarithms."""
_UNCROWDED = 0.5
"""Share of the requests that the memory holds. Above it users queue: TTFT says little of steps."""


def step_laws(predictor: Roofline, rows: pd.DataFrame, n_draws: int, seed: int) -> np.ndarray:
    """Return the step laws of configurations, shape (rows, 1 + draws, terms), in `NAMES`' order.

    The first law of each has the most likely parameters, the others those of draws. The rows are as
    `predictor.design` gives them, of any users; their lengths are the means of the requests.
    InputError where most points of the fit, or the rows, are of servers without CUDA graphs.
    """
    posterior = predictor.posterior_
    if not predictor.has_steps or rows["is_eager"].any():
        problem = "servers without CUDA graphs (TGIS, CPU cores) are measured or asked about"
        fix = "name a source of servers with them, e.g. --source archive:inferencex"
        raise InputError(f"no step can be simulated: {problem}", fix=fix)
    n_rows, n_users, n_laws = len(rows), len(_USERS), 1 + n_draws
    X = rows.loc[rows.index.repeat(n_users)].reset_index(drop=True)
    X = X.assign(users=np.tile(_USERS, n_rows))
    likely, _, correction = predictor.most_likely(X)
    with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
        drawn = posterior.draw_parameters(X, n_draws, seed)
    phi = np.concatenate([likely[None], drawn]).reshape(-1, likely.shape[1])
    facts = {name: np.tile(values, n_laws) for name, values in columns_of(X).items()}
    known = posterior.law.predict_log(phi, facts) + np.tile(correction, (n_laws, 1))
    known[:, 0] += np.log(facts["input_tokens"])
    # What a law misses is common to all loads of a configuration, as far as it is smooth; drawn
    # alike for all GPU profiles, it does not make a better one worse.
    errors = posterior.draw_errors(X.assign(gpu_profile_id=""), n_draws, seed)
    errors = errors.reshape(n_draws, n_rows, n_users, 2)
    known = known.reshape(n_laws, n_rows, n_users, 2)
    known[1:] += errors.mean(axis=2, keepdims=True)
    known = known.reshape(-1, n_users, 2)
    alone, at = {name: values[::n_users] for name, values in facts.items()}, phi[::n_users]
    law = step_law(at, alone)
    start = np.stack([np.broadcast_to(term, len(at)) for term in astuple(law)], axis=1)
    start[:, [NAMES.index(name) for name in STEP_TERMS]] *= np.exp(at[:, [-1]])
    load, limits = mean_load(alone), batch_limits(at, alone)
    uncrowded = np.maximum(_UNCROWDED * limits.most_decoding(load), 1)
    known[..., 0][uncrowded[:, None] < _USERS] = np.nan
    columns = [[np.broadcast_to(v, len(at))[:, None] for v in each] for each in (load, limits)]

    def predict(law: StepLaw, places: np.ndarray, _: object) -> Means:
        here = [[values[places] for values in each] for each in columns]
        return closed_loop(law, BatchLimits(*here[1]), MeanLoad(*here[0]), _USERS)

    both = np.concatenate([known[..., 0], known[..., 1]], axis=1)
    values = match_means(start, _GROUPS, _PRIOR_SD, predict, both, _NOISE).values
    return values.reshape(n_laws, n_rows, len(NAMES)).swapaxes(0, 1)

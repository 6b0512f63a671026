"""Step laws of configurations that need no measurement, from the predictor's fit.

The law says what a step takes (`law.terms.step_law`). The statistic, the trees and the error of a
draw change the latencies beyond it. So the law's terms are scaled until the closed form gives the
predictor's own latencies at one to many users.
"""

from dataclasses import astuple

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from sextant.base.errors import InputError
from sextant.law.matching import STEP_TERMS, TermGroup, match_means
from sextant.law.means import BatchLimits, MeanLoad, Means, closed_loop
from sextant.law.posterior import Columns, columns_of
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
"""How closely a scaled law has to give the predictor's latencies, in logarithms."""
_UNCROWDED = 0.5
"""Share of the requests that the memory holds. Above it users queue: TTFT says little of steps."""


def step_laws(predictor: Roofline, rows: pd.DataFrame, n_draws: int, seed: int) -> np.ndarray:
    """Return the step laws of configurations, shape (rows, 1 + draws, terms), in `NAMES`' order.

    The first law of each configuration has the most likely parameters, the others those of draws.

    Args:
        predictor: the fit.
        rows: configurations as `predictor.design` gives them, of any users; their lengths are the
            means of the requests.
        n_draws: number of draws.
        seed: of the draws.

    Raises InputError: most points of the fit, or the rows, are of servers without CUDA graphs.
    """
    if not predictor.has_steps or rows["is_eager"].any():
        problem = "servers without CUDA graphs (TGIS, CPU cores) are measured or asked about"
        fix = "name a source of servers with them, e.g. --source archive:inferencex"
        raise InputError(f"no step can be simulated: {problem}", fix=fix)
    n_rows = len(rows)
    n_users = len(_USERS)
    X = rows.loc[rows.index.repeat(n_users)].reset_index(drop=True)
    X = X.assign(users=np.tile(_USERS, n_rows))
    phi, facts, latencies = _drawn_latencies(predictor, X, n_draws, seed)

    # One law a configuration and draw: its parameters and facts are the same at all users.
    facts = {name: values[::n_users] for name, values in facts.items()}
    phi = phi[::n_users]
    latencies = latencies.reshape(-1, n_users, 2)
    start = np.stack(
        [np.broadcast_to(term, len(phi)) for term in astuple(step_law(phi, facts))], axis=1
    )
    itl_offset = np.exp(phi[:, [-1]])
    start[:, [NAMES.index(name) for name in STEP_TERMS]] *= itl_offset

    load = mean_load(facts)
    limits = batch_limits(phi, facts)
    uncrowded_users = np.maximum(_UNCROWDED * limits.most_decoding(load), 1)
    ttft = latencies[..., 0]
    ttft[uncrowded_users[:, None] < _USERS] = np.nan

    load_columns = [np.broadcast_to(values, len(phi))[:, None] for values in load]
    limit_columns = [np.broadcast_to(values, len(phi))[:, None] for values in limits]

    def predict(law: StepLaw, laws: np.ndarray, _: object) -> Means:
        law_limits = BatchLimits(*(values[laws] for values in limit_columns))
        law_load = MeanLoad(*(values[laws] for values in load_columns))
        return closed_loop(law, law_limits, law_load, _USERS)

    targets = np.concatenate([ttft, latencies[..., 1]], axis=1)
    values = match_means(start, _GROUPS, _PRIOR_SD, predict, targets, _NOISE).values
    return values.reshape(1 + n_draws, n_rows, len(NAMES)).swapaxes(0, 1)


def _drawn_latencies(
    predictor: Roofline, X: pd.DataFrame, n_draws: int, seed: int
) -> tuple[np.ndarray, Columns, np.ndarray]:
    """Return parameters, facts, and logarithms of TTFT and ITL, of all laws and rows in turn.

    The rows are grouped by `_USERS`; the first law is the most likely one.
    """
    posterior = predictor.posterior_
    likely = predictor.most_likely(X)
    with threadpool_limits(1):  # matrices of a few hundred columns: threads only cost
        drawn = posterior.draw_parameters(X, n_draws, seed)
    n_laws = 1 + n_draws
    phi = np.concatenate([likely.phi[None], drawn]).reshape(-1, likely.phi.shape[1])
    facts = {name: np.tile(values, n_laws) for name, values in columns_of(X).items()}
    latencies = posterior.law.predict_log(phi, facts) + np.tile(likely.correction, (n_laws, 1))
    latencies[:, 0] += np.log(facts["input_tokens"])

    # What a law misses is common to all loads of a configuration, as far as it is smooth. All GPU
    # profiles share it in a draw, so that it does not make a better one worse.
    errors = posterior.draw_errors(X.assign(gpu_profile_id=""), n_draws, seed)
    by_users = (-1, len(X) // len(_USERS), len(_USERS), 2)
    latencies = latencies.reshape(by_users)
    latencies[1:] += errors.reshape(by_users).mean(axis=2, keepdims=True)
    return phi, facts, latencies

"""The step law of a measured server, from its closed-loop requests.

Where the times of tokens are known, the law starts from the steps that they show
(`measured_steps`), else from a rough guess. Its terms are scaled until the mean latencies agree
(`match_means`). The closed form gives the means of equal requests at a steady load. The simulator
then runs the measured requests, with their lengths and first wave; the difference between both
corrects the closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.law.means import (
    BatchLimits,
    MeanLoad,
    Means,
    TermGroup,
    broadcast_laws,
    closed_loop,
    match_means,
)
from sextant.law.measured_steps import law_of_steps, measured_steps
from sextant.simulate.server import NAMES, Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, simulate_closed
from sextant.workload.requests import RequestStream

_LENGTHS = ["input_tokens", "output_tokens"]
_GROUPS: tuple[TermGroup, ...] = (
    ("floor_ms", "dense_ms"),
    ("sequence_ms",),
    ("kv_token_ms",),
    ("prefill_token_ms",),
    ("prompt_step_ms",),
    ("request_ms",),
)
_BROAD_SD = (1.0,) * len(_GROUPS)
_OF_STEPS_SD = (*(0.05,) * (len(_GROUPS) - 1), 1.0)
"""Prior of terms that measured steps determine; steps say nothing about `request_ms`."""
LEAST_NOISE = 0.02
"""Least noise of a mean's logarithm: a level that is measured again differs by a few percent."""
_ROUNDS = 3
"""Rounds of closed form and simulation."""
_REPEATS = 8
"""Simulated requests per measured one: simulated users may get their answers sooner."""
_SPREAD = 0.2
"""Lengths of a point's requests differ by up to this share."""
_REQUESTS_PER_USER = 10
"""Requests per user that stand for a point; load tests send about this number."""
_SIZES = 4
"""Parts into which the requests of one user alone fall, by input tokens."""


class CalibratedLaws(NamedTuple):
    """The step law of one measured server, and how uncertain it is."""

    law: StepLaw
    draws: np.ndarray  #: Laws that the measurements allow, shape (draws, terms).
    errors: np.ndarray
    """Logarithms of predicted over measured means of TTFT and ITL, shape (levels, 2)."""


def closed_loop_requests(folder: Path) -> pd.DataFrame:
    """Return the requests that succeeded of a cell of closed-loop levels, for `calibrate`.

    Columns are `users, input_tokens, output_tokens, sent_s, ttft_ms, e2e_ms, token_offsets_ms`.
    """
    rows = pd.read_parquet(folder / "requests.parquet")
    rows = rows[rows["status"] == "ok"].reset_index(drop=True)
    return rows[["input_tokens", "output_tokens", "token_offsets_ms"]].assign(
        users=rows["level"],
        sent_s=rows["scheduled_s"],
        ttft_ms=1e3 * (rows["first_token_s"] - rows["scheduled_s"]),
        e2e_ms=1e3 * (rows["last_token_s"] - rows["scheduled_s"]),
    )


def requests_of_points(points: pd.DataFrame) -> pd.DataFrame:
    """Return requests that have about the means of a characterization's points, for `calibrate`.

    The points are of one server, with `users, input_tokens, output_tokens, mean_ttft_ms,
    mean_itl_ms`; InputError where none has all of them.
    """
    names = ["users", "input_tokens", "output_tokens", "mean_ttft_ms", "mean_itl_ms"]
    complete = points[names].astype(float).dropna()
    if complete.empty:
        fix = "measure users of a closed loop, or calibrate on its requests"
        raise InputError("no point has users, lengths and both latencies", fix=fix)
    n_requests = _REQUESTS_PER_USER * complete["users"].astype(int)
    rows = complete.loc[complete.index.repeat(n_requests)]

    # Equal requests would answer all users at once, and be answered in lockstep ever after.
    around = np.random.default_rng(0).uniform(1 - _SPREAD, 1 + _SPREAD, (len(rows), 2))
    tokens = (rows[_LENGTHS] * around).round().clip(lower=1).astype(int)
    decode_ms = (tokens["output_tokens"] - 1) * rows["mean_itl_ms"]
    return tokens.assign(
        users=rows["users"],
        ttft_ms=rows["mean_ttft_ms"],
        e2e_ms=rows["mean_ttft_ms"] + decode_ms,
    ).reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class _Level:
    """Requests of one number of users; of a single user, requests of about one input length."""

    requests: pd.DataFrame

    @classmethod
    def levels_of(cls, requests: pd.DataFrame) -> list[Self]:
        """Return the levels of requests, users rising.

        A single user's requests are parted by length: they show the time of a prompt's token.
        """
        levels = []
        for users, rows in requests.groupby("users"):
            if users > 1 or rows["input_tokens"].nunique() < _SIZES:
                levels.append(cls(rows))
            else:
                sizes = pd.qcut(rows["input_tokens"], _SIZES, duplicates="drop")
                levels += [cls(alike) for _, alike in rows.groupby(sizes, observed=True)]
        return levels

    @property
    def users(self) -> float:
        """The number of users."""
        return float(self.requests["users"].iloc[0])

    def means_ms(self) -> tuple[float, float]:
        """Return mean TTFT, and mean gap between tokens over all tokens."""
        rows = self.requests
        gaps_ms = (rows["e2e_ms"] - rows["ttft_ms"]).sum() / (rows["output_tokens"] - 1).sum()
        return float(rows["ttft_ms"].mean()), float(gaps_ms)

    def noise(self) -> list[float]:
        """Return the standard errors of the logarithms of `means_ms`, at least `LEAST_NOISE`."""
        rows = self.requests
        gaps_ms = (rows["e2e_ms"] - rows["ttft_ms"]) / (rows["output_tokens"] - 1)
        return [
            float(np.hypot(LEAST_NOISE, values.std(ddof=0) / values.mean() / np.sqrt(len(values))))
            for values in (rows["ttft_ms"], gaps_ms)
        ]

    def simulated_ms(self, law: StepLaw, scheduler: Scheduler) -> np.ndarray:
        """Return `means_ms` as the simulator has them, shape (2,)."""
        rows = self.requests
        rows = rows.sort_values("sent_s") if "sent_s" in rows else rows
        lengths = pd.concat([rows[_LENGTHS]] * _REPEATS)
        stream = RequestStream.of(np.zeros(len(lengths)), *lengths.to_numpy().T)
        users = int(self.users)
        duration_s = rows["e2e_ms"].sum() / 1e3 / users
        return simulated_means_ms(
            simulate_closed(users, stream, scheduler, law, duration_s=duration_s)
        )


def simulated_means_ms(result: Simulation) -> np.ndarray:
    """Return mean TTFT, and mean gap between tokens over all tokens, shape (2,)."""
    counted = result.is_counted
    tpot_s = result.tpot_s[counted]
    later_tokens = result.output_tokens[counted] - 1
    gaps_s = np.nansum(tpot_s * later_tokens) / later_tokens[np.isfinite(tpot_s)].sum()
    return 1e3 * np.array([np.nanmean(result.ttft_s[counted]), gaps_s])


def calibrate(
    requests: pd.DataFrame, scheduler: Scheduler, n_draws: int, seed: int
) -> CalibratedLaws:
    """Return the step law that gives the latencies of closed-loop requests.

    The terms are told apart by several numbers of users, one of them a single user.

    Args:
        requests: as `closed_loop_requests` or `requests_of_points` returns them.
        scheduler: the server's settings.
        n_draws: number of further laws that the measurements allow.
        seed: of these draws.

    Raises InputError: no request has two output tokens.
    """
    rows = requests[requests["output_tokens"] > 1]
    if rows.empty:
        problem = "no request has two output tokens, so no time between tokens is known"
        raise InputError(problem, fix="measure requests of two output tokens or more")
    levels = _Level.levels_of(rows)
    measured = np.log([level.means_ms() for level in levels]).T.ravel()
    noise = np.array([level.noise() for level in levels]).T.ravel()

    users = np.array([level.users for level in levels])
    lengths = [[level.requests[name].mean() for level in levels] for name in _LENGTHS]
    load = MeanLoad(*np.array(lengths))
    limits = BatchLimits.of(scheduler)

    def predict(law: StepLaw, *_: object) -> Means:
        return closed_loop(law, limits, load, users)

    first_law, prior_sd = _first_law(requests, levels)
    start = first_law.array()[None]
    bias = np.zeros_like(measured)
    for _ in range(_ROUNDS):
        target = (measured + bias)[None]
        matched = match_means(start, _GROUPS, prior_sd, predict, target, noise)
        law = StepLaw.of(matched.values[0])
        simulated_ms = [level.simulated_ms(law, scheduler) for level in levels]
        simulated = np.log(simulated_ms).T.ravel()
        bias = np.nan_to_num(predict(broadcast_laws(matched.values)).logs()[0] - simulated)

    errors = simulated - measured
    misfit = max(float(np.mean((errors / noise) ** 2)), 1.0)
    log_scales = matched.draw_log_scales(prior_sd, misfit, n_draws, seed)
    draws = np.repeat(start, n_draws, axis=0)
    for column, group in enumerate(_GROUPS):
        draws[:, [NAMES.index(name) for name in group]] *= np.exp(log_scales[:, [column]])
    return CalibratedLaws(law, draws, errors.reshape(2, -1).T)


def _first_law(
    requests: pd.DataFrame, levels: Sequence[_Level]
) -> tuple[StepLaw, tuple[float, ...]]:
    """Return the law to start from, and the prior of its groups' scales.

    It is the law of the steps that the times of tokens show. Without these it is a law of the right
    order: its terms share the waits of the least and of the most users.
    """
    least = levels[0]
    ttft_ms, itl_ms = least.means_ms()
    input_tokens = least.requests["input_tokens"]
    context_tokens = input_tokens + least.requests["output_tokens"] / 2
    most = levels[-1]
    rise_ms = (most.means_ms()[1] - itl_ms) / max(most.users - 1, 1)
    slope_ms = max(rise_ms, 0.02 * itl_ms)
    rough = StepLaw(
        floor_ms=0.4 * itl_ms,
        dense_ms=0.4 * itl_ms,
        sequence_ms=0.3 * slope_ms,
        kv_token_ms=0.2 * slope_ms / context_tokens.mean(),
        prefill_token_ms=0.3 * ttft_ms / input_tokens.mean(),
        prompt_step_ms=0.1 * itl_ms,
        request_ms=0.3 * ttft_ms,
    )
    if "token_offsets_ms" in requests:
        steps = [measured_steps(level) for _, level in requests.groupby("users")]
        if of_steps := law_of_steps(pd.concat(steps)):
            return replace(of_steps, request_ms=rough.request_ms), _OF_STEPS_SD
    return rough, _BROAD_SD

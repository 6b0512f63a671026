"""SLOs drawn at random, over the range of what was measured."""

import numpy as np

from sextant.base.errors import InputError
from sextant.facts.slo import SLO
from sextant.judge.accuracy import MEDIANS
from sextant.judge.task import Task
from sextant.points.frame import TARGETS, at_percentile

_LIMITS = (0.05, 0.95)
"""Quantiles of the measured latencies between which random limits are drawn."""
_DEPLOYMENT = 8
"""Random loads go up to 8 times the most users measured on one server."""


def random_slos(task: Task, n: int, seed: int) -> list[SLO]:
    """Draw SLOs over the range of what was measured; each number is log-uniform.

    Limits are on the median of the first token (TTFT where each point has its own lengths, else
    nTTFT) and of the gap between tokens (TPOT, ITL). They lie between the quantiles `_LIMITS` of
    the measured latencies. Users lie between the fewest measured and `_DEPLOYMENT` times the most.
    The same seed gives the same SLOs.

    Raises InputError: no point has a latency, or none has users.
    """
    points = at_percentile(task.points, MEDIANS, "ttft" if task.has_fixed_lengths else "nttft")
    measured = points[TARGETS].where(points[TARGETS] > 0)
    names = ["nttft_ms", "itl_ms"]
    if task.has_fixed_lengths:
        names = ["ttft_ms", "tpot_ms"]
        measured["nttft_ms"] *= points["input_tokens"]
    users = points["users"].dropna().astype(float)
    if measured.isna().all().any() or users.empty:
        problem = f"{task.source} lacks the first token's latency, the gap's, or users"
        fix = "judge the accuracy alone (without --random-slos), or name another --source"
        raise InputError(problem, field="--random-slos", fix=fix)
    ranges = [*measured.quantile(_LIMITS).to_numpy().T, (users.min(), _DEPLOYMENT * users.max())]
    low, high = np.log(np.array(ranges, float)).T
    drawn = np.exp(np.random.default_rng(seed).uniform(low, high, (n, 3)))
    return [
        SLO(
            f"random-{number}",
            percentile=50,
            users=max(1, round(load)),
            **dict(zip(names, latencies, strict=True)),
        )
        for number, (*latencies, load) in enumerate(drawn.tolist(), 1)
    ]

"""One replica on a GPU profile, and what it makes of a demand under each draw of its law."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sextant.answer.capacity.demand import Demand
from sextant.answer.capacity.target import Judged, Outcome, Target, judge
from sextant.facts.gpu import GPUProfile

Replicas = int | np.ndarray
"""How many replicas take requests in turn, or the replica of each request."""
Run = Callable[[Demand, Replicas, int, float | None], Outcome]
"""Simulates a demand on replicas, with a draw of the law (0: the most likely one); gaps between
tokens are counted in windows of this length (None: all together)."""
_APART_S = 1e5


@dataclass(frozen=True)
class Server:
    """How a replica on a GPU profile serves the LLM."""

    profile: GPUProfile
    run: Run
    n_draws: int = 1

    def judge(self, demand: Demand, replicas: Replicas, target: Target, draw: int = 0) -> Judged:
        """Return how the windows go."""
        outcome = self.run(demand, replicas, draw, target.window_s)
        return judge(outcome, target, demand.n_windows(target.window_s))

    def judge_alone(self, demand: Demand, target: Target, draw: int = 0) -> tuple[Judged, float]:
        """Return how the windows would go if each request were alone, and its mean E2E in s.

        No number of replicas does better. The gaps of all windows are taken together.
        """
        apart = replace(demand, arrival_s=np.arange(demand.n) * _APART_S)
        apart = replace(apart, duration_s=demand.n * _APART_S)
        outcome = self.run(apart, 1, draw, None)
        n_windows = demand.n_windows(target.window_s)
        counts = np.repeat(outcome.itl_counts[:1], n_windows, axis=0)
        outcome = outcome._replace(arrival_s=demand.arrival_s, itl_counts=counts)
        mean_s = float(outcome.e2e_s[outcome.is_ok].mean()) if outcome.is_ok.any() else np.nan
        return judge(outcome, target, n_windows), mean_s

    def usd_per_hour(self, n_replicas: int) -> float:
        """Return the price of so many replicas."""
        return round(n_replicas * self.profile.usd_per_hour, 9)

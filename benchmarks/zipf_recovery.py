"""Zipf's theta recovered from 10,000 lengths: error and coverage of the 95% interval.

    .venv/bin/python benchmarks/zipf_recovery.py --repetitions 2000

Lengths are drawn by inverting scipy.stats.zipfian's distribution function, not by our sampler.
A row a theta and a kind of bounds: given (1 and 8192), or the smallest and largest length seen,
as `fit_zipf` takes them by default. The bar is an error of 3%. Then the time of a fit to a
million lengths, and to their histogram, against maximizing scipy.stats.zipfian's likelihood of
a hundredth of them.
"""

import argparse
import time
from functools import cache

import numpy as np
import pandas as pd
from scipy import optimize, stats

from sextant.workload.published import fit_zipf

THETAS = (0.8, 1.1, 1.5)
LOWEST, HIGHEST, N_LENGTHS = 1, 8192, 10_000


@cache
def cumulative(theta: float) -> np.ndarray:
    return stats.zipfian(theta, HIGHEST).pmf(np.arange(LOWEST, HIGHEST + 1)).cumsum()


def draw(theta: float, n: int, rng: np.random.Generator) -> np.ndarray:
    law = cumulative(theta)
    return LOWEST + np.searchsorted(law, rng.random(n) * law[-1], side="right")


def recovery(theta: float, repetitions: int, seed: int) -> list[dict[str, float | str]]:
    rng = np.random.default_rng(seed)
    fits: dict[str, list] = {"given": [], "seen": []}
    for _ in range(repetitions):
        lengths, counts = np.unique(draw(theta, N_LENGTHS, rng), return_counts=True)
        fits["given"].append(fit_zipf(lengths, LOWEST, HIGHEST, counts=counts))
        fits["seen"].append(fit_zipf(lengths, counts=counts))
    rows = []
    for bounds, found in fits.items():
        errors = np.array([fit.theta / theta - 1 for fit in found])
        covered = np.mean([fit.theta_lo <= theta <= fit.theta_hi for fit in found])
        rows.append(
            {
                "theta": theta,
                "bounds": bounds,
                "mean_theta": np.mean([fit.theta for fit in found]),
                "mean_error_percent": 100 * errors.mean(),
                "largest_error_percent": 100 * np.abs(errors).max(),
                "within_3_percent": np.mean(np.abs(errors) <= 0.03),
                "coverage_of_95": covered,
            }
        )
    return rows


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed(seed: int) -> None:
    tokens = draw(1.1, 1_000_000, np.random.default_rng(seed))
    values, counts = np.unique(tokens, return_counts=True)
    ours = seconds(lambda: fit_zipf(tokens, LOWEST, HIGHEST))
    weighted = seconds(lambda: fit_zipf(values, LOWEST, HIGHEST, counts=counts))
    few = tokens[:10_000]

    def cost(theta: float) -> float:
        return -stats.zipfian.logpmf(few, theta, HIGHEST).sum()

    theirs = seconds(lambda: optimize.minimize_scalar(cost, bounds=(0.1, 5), method="bounded"))
    print(f"1,000,000 lengths: {ours * 1e3:.1f} ms, their histogram: {weighted * 1e3:.1f} ms;")
    print(f"scipy's likelihood, 10,000 of them: {theirs * 1e3:.0f} ms, {theirs / ours:.0f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = [row for theta in THETAS for row in recovery(theta, given.repetitions, given.seed)]
    print(pd.DataFrame(rows).to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    speed(given.seed)


if __name__ == "__main__":
    main()

"""How well Gamma gaps are fitted: error of the shape, and coverage.

    .venv/bin/python benchmarks/gamma_recovery.py            # half a minute
    .venv/bin/python benchmarks/gamma_recovery.py --gaps 30 --repetitions 20000
    .venv/bin/python benchmarks/gamma_recovery.py --clock --gaps 1000

A row a shape: the median error of alpha's estimate, how often it is within 5%, the largest, how
often the 95% intervals of alpha and beta hold the truth. The last column is the time that
`scipy.stats.gamma.fit` takes for 200 samples, one after the other, over ours, all sums included.
With --clock, times are cut to a clock's step, given in mean gaps: the share of samples whose shape
is determined comes first, and all other figures are of those.
"""

import argparse
import time
from collections.abc import Iterator

import numpy as np
from scipy import stats

from sextant.workload.gamma import (
    GammaFits,
    count_steps,
    fit_gamma,
    fit_steps,
)

SHAPES = (0.25, 0.5, 1.0, 4.0)
BETA_S = 2.0
STEPS = (0.05, 0.25, 1.0, 3.0)
VALUES_AT_A_TIME = 2_000_000


def draws(rng: np.random.Generator, alpha: float, n: int, repetitions: int) -> Iterator[np.ndarray]:
    """Yield samples of `n` gaps, one a row, some at a time."""
    while repetitions > 0:
        n_rows = min(repetitions, max(1, VALUES_AT_A_TIME // n))
        # Of the smallest shapes some draws are below the smallest float.
        yield np.maximum(rng.gamma(alpha, BETA_S, (n_rows, n)), 1e-300)
        repetitions -= n_rows


def fit(gaps: np.ndarray) -> GammaFits:
    return fit_gamma(gaps.shape[1], gaps.sum(axis=1), np.log(gaps).sum(axis=1))


def recover(alpha: float, n: int, repetitions: int, seed: int) -> list[str]:
    rng, errors, covered = np.random.default_rng(seed), [], []
    for gaps in draws(rng, alpha, n, repetitions):
        fits = fit(gaps)
        errors.append(fits.alpha / alpha - 1)
        held = (fits.alpha_lo < alpha) & (alpha < fits.alpha_hi)
        covered.append(np.stack([held, (fits.beta_lo < BETA_S) & (fits.beta_hi > BETA_S)]))
    error = np.abs(np.concatenate(errors))
    shares = np.concatenate(covered, axis=1).mean(axis=1)
    return [
        f"{alpha:g}",
        f"{np.median(error):.2%}",
        f"{np.mean(error < 0.05):.2%}",
        f"{error.max():.1%}",
        *(f"{share:.1%}" for share in shares),
        f"{_speed(gaps[:200]):.1f}",
    ]


def _speed(gaps: np.ndarray) -> float:
    """Return SciPy's time for these samples over ours, the shortest of 3 runs each."""
    own = min(_seconds(lambda: fit(gaps)) for _ in range(3))
    theirs = (_seconds(lambda: [stats.gamma.fit(row, floc=0) for row in gaps]) for _ in range(3))
    return min(theirs) / own


def _seconds(run) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def clocked(
    rng: np.random.Generator, alpha: float, step: float, n: int, repetitions: int
) -> Iterator[np.ndarray]:
    """Yield samples of `n` gaps in whole steps of a clock, one a row, some at a time."""
    for gaps in draws(rng, alpha, n + 1, repetitions):
        # The first gap puts the first time anywhere within its step.
        phase = rng.random((len(gaps), 1)) * 1_000
        times = phase + np.cumsum(gaps / (alpha * BETA_S * step), axis=1)
        yield np.diff(np.floor(times), axis=1)


def recover_clocked(alpha: float, step: float, n: int, repetitions: int, seed: int) -> list[str]:
    rng, found = np.random.default_rng(seed), []
    n_seen = 0
    for steps in clocked(rng, alpha, step, n, repetitions):
        fits = fit_steps(count_steps(steps.ravel(), np.full(len(steps), n)))
        known = np.isfinite(fits.alpha)
        n_seen += len(steps)
        if not known.any():
            continue
        own = GammaFits(*(values[known] for values in vars(fits).values()))
        beta = 1 / (alpha * step)
        held = (own.alpha_lo < alpha) & (alpha < own.alpha_hi)
        held_beta = (own.beta_lo < beta) & (beta < own.beta_hi)
        found.append(np.stack([own.alpha / alpha - 1, held, held_beta]))
    head = [f"{alpha:g}", f"{step:g}"]
    if not found:
        return [*head, "0.0%", *["–"] * 5]
    error, *shares = np.concatenate(found, axis=1)
    return [
        *head,
        f"{len(error) / n_seen:.1%}",
        f"{np.median(error):+.1%}",
        f"{np.median(np.abs(error)):.2%}",
        f"{np.mean(np.abs(error) < 0.05):.1%}",
        *(f"{share.mean():.1%}" for share in shares),
    ]


def clock_table(n: int, repetitions: int, seed: int) -> None:
    columns = ("alpha", "step", "determined", "bias", "median error", "within 5%", "alpha held")
    print(f"| {' | '.join(columns)} | beta held |")
    print(f"|{'---|' * (len(columns) + 1)}")
    for alpha in SHAPES:
        for step in STEPS:
            figures = recover_clocked(alpha, step, n, repetitions, seed)
            print(f"| {' | '.join(figures)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gaps", type=int, default=10_000, help="gaps a sample")
    parser.add_argument("--repetitions", type=int, default=2_000, help="samples a shape")
    parser.add_argument("--seed", type=int, default=20231101)
    parser.add_argument("--clock", action="store_true", help="cut times to a clock's steps")
    options = parser.parse_args()
    if options.clock:
        clock_table(options.gaps, options.repetitions, options.seed)
        return
    columns = ("alpha", "median error", "within 5%", "largest", "alpha held", "beta held")
    print(f"| {' | '.join(columns)} | SciPy / ours |")
    print(f"|{'---|' * (len(columns) + 2)}")
    for alpha in SHAPES:
        figures = recover(alpha, options.gaps, options.repetitions, options.seed)
        print(f"| {' | '.join(figures)} |", flush=True)


if __name__ == "__main__":
    main()

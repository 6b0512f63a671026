"""Work in several processes."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

ALL_CPUS = -1
"""As a number of processes: one for each CPU that this process may use."""
_T = TypeVar("_T")


def results_of(jobs: Iterable[Callable[[], _T]], n_jobs: int) -> Iterator[_T]:
    """Yield what each job returns, in their order, from `n_jobs` processes."""
    from joblib import Parallel, delayed  # its import takes longer than many an answer's work

    return Parallel(n_jobs=n_jobs, return_as="generator")(delayed(job)() for job in jobs)

"""Threads of the libraries that multiply matrices."""

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """Return a context in which NumPy's products use one thread.

    Matrices of a few hundred columns gain nothing from more.
    """
    return _controller().limit(limits=1)


@cache
def _controller() -> ThreadpoolController:
    """Return the libraries that this process has loaded: finding them takes milliseconds."""
    return ThreadpoolController()

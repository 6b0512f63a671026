"""Exceptions from signal handlers while an event loop runs."""

import asyncio


def raise_between_callbacks(error: BaseException) -> None:
    """Raise an exception in a signal handler; while a loop runs, after the current callback.

    uvloop takes an exception inside a connection's callback for a failure of that connection, and
    continues.
    """

    def raise_error() -> None:
        raise error

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon_threadsafe(raise_error)

"""What a signal does while an event loop runs."""

import asyncio


def raise_between_callbacks(error: BaseException) -> None:
    """Raise an exception in a signal handler; while a loop runs, after the callback it came upon.

    uvloop takes what is raised inside a connection's callback for that connection's failure, and
    goes on.
    """

    def raise_error() -> None:
        raise error

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon_threadsafe(raise_error)

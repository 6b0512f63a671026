"""How long an answer takes, and how many answers are under way at once (Little's law)."""

from typing import Any

import numpy as np


def answer_ms(ttft_ms: Any, itl_ms: Any, output_tokens: Any) -> np.ndarray:
    """Return E2E: TTFT, then ITL or TPOT for each later token; numbers or arrays alike in shape.

    An answer of one token ends with it, also where ITL is NaN.
    """
    later_tokens = np.maximum(np.asarray(output_tokens) - 1, 0)
    later_ms = np.where(later_tokens == 0, 0.0, later_tokens * itl_ms)
    return np.asarray(ttft_ms + later_ms)


def requests_in_flight(rate_rps: Any, e2e_ms: Any) -> Any:
    """Return the answers that are under way on average; numbers or arrays alike in shape."""
    return rate_rps * e2e_ms / 1e3


def rate_of_users(users: Any, e2e_ms: Any) -> Any:
    """Return the requests a second of users who wait for answers all the time."""
    return 1e3 * users / e2e_ms


def requests_decoding(users: Any, ttft_ms: Any, later_ms: Any) -> Any:
    """Return how many of the users' requests decode at once.

    `later_ms` is the time of an answer after its first token.
    """
    return users * later_ms / (ttft_ms + later_ms)

"""How long an answer takes, and how many answers are under way."""

import math

import numpy as np
import pytest

from sextant.facts.answer_times import (
    answer_ms,
    rate_of_users,
    requests_decoding,
    requests_in_flight,
)


@pytest.mark.parametrize(
    ("ttft_ms", "itl_ms", "output_tokens", "expected_ms"),
    [
        (500, 20, 51, 1500),
        (500, math.nan, 1, 500),  # it ends with its first token
        (500, 20, 0.5, 500),
        (500, math.nan, 2, math.nan),
        (math.nan, 20, 1, math.nan),
        (500, 20, math.nan, math.nan),
    ],
)
def test_an_answer_takes_its_first_token_and_all_later_ones(
    ttft_ms: float, itl_ms: float, output_tokens: float, expected_ms: float
) -> None:
    np.testing.assert_equal(float(answer_ms(ttft_ms, itl_ms, output_tokens)), expected_ms)


def test_a_rate_and_the_answers_under_way_tell_each_other() -> None:
    assert requests_in_flight(4, 1500) == 6
    assert rate_of_users(6, 1500) == 4


def test_users_decode_for_the_share_of_an_answer_after_its_first_token() -> None:
    assert requests_decoding(64, 8400, 2800) == 16
    # It is the rate of the answers, times the time after the first token.
    assert requests_in_flight(rate_of_users(64, 8400 + 2800), 2800) == pytest.approx(16)

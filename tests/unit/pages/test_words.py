"""Numbers in words, for text and pages alike."""

import pytest

from sextant.pages.words import usd_number, usd_words


@pytest.mark.parametrize(
    ("usd_per_hour", "words"),
    [
        (None, "– USD/h"),
        (0.0, "0.00 USD/h"),
        (0.00003, "0.00003 USD/h"),
        (0.0001, "0.0001 USD/h"),
        (0.05, "0.05 USD/h"),
        (3.99, "3.99 USD/h"),
        (12345.6, "12,345.60 USD/h"),
    ],
)
def test_a_price_below_a_cent_is_no_zero(usd_per_hour, words):
    assert usd_words(usd_per_hour) == words
    assert usd_number(usd_per_hour) == words.removesuffix(" USD/h")

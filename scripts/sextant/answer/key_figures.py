"""Key figures that several answers have: a price, and a probability."""

from sextant.decide.decision import FAIR, SAFE
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.pages.blocks import KeyFigure, Tone
from sextant.pages.words import chance, number, usd_words


def price_figure(usd_per_hour: float, *details: str) -> KeyFigure:
    """Return a price an hour, with that of a month of 730 hours and further details."""
    month = f"{number(float(HOURS_PER_MONTH * usd_per_hour))} USD a month"
    return KeyFigure("Price", usd_words(usd_per_hour), ", ".join([month, *details]))


def chance_figure(label: str, probability: float, detail: str = "") -> KeyFigure:
    """Return a probability, in the tone of how good it is."""
    return KeyFigure(label, chance(probability), detail, _chance_tone(probability))


def _chance_tone(probability: float) -> Tone:
    """Return whether a probability is good, to be doubted, or too low."""
    if probability >= SAFE:
        return "good"
    return "doubt" if probability >= FAIR else "bad"

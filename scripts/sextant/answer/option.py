"""An option of an answer: replicas of a GPU profile; and which options others beat."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from sextant.decide.decision import FAIR, SAFE
from sextant.pages.blocks import Note
from sextant.pages.words import shown_chance, usd_words

_FAR_DEARER = 10
"""An option of at most even chance at this many times the lowest price is beaten."""


class Option(NamedTuple):
    """Replicas of a GPU profile that serve the whole load; all None where nothing does."""

    gpu_profile_id: str | None = None
    replicas: int | None = None
    users_per_replica: int | None = None
    usd_per_hour: float | None = None
    """Of all replicas."""
    probability_met: float | None = None
    """That all limits hold; None where nothing says how sure the latencies are."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Option":
        """Return the option of a row that has these columns, and maybe others."""
        return cls(*(row.get(name) for name in cls._fields))


class Priced(Protocol):
    """What has a price and a probability."""

    @property
    def gpu_profile_id(self) -> str | None:
        """Its GPU profile."""

    @property
    def usd_per_hour(self) -> float | None:
        """Its price; None: it is none."""

    @property
    def probability_met(self) -> float | None:
        """Its probability to meet the SLO; None: not known."""


AnyPriced = TypeVar("AnyPriced", bound=Priced)


def split_beaten(options: Sequence[AnyPriced]) -> tuple[list[AnyPriced], list[AnyPriced]]:
    """Return the options that somebody may rent, and the beaten ones, in their order.

    An option is beaten by one that is no dearer and no less likely, as the probability is shown,
    and better in one of the two. An option of probability `FAIR` or less is beaten, too, at
    `_FAR_DEARER` times the lowest price. Without a price or a probability an option beats nothing
    and is not beaten.
    """
    priced = [
        (option.usd_per_hour, shown_chance(option.probability_met))
        for option in options
        if option.usd_per_hour is not None and option.probability_met is not None
    ]
    lowest_usd = min((usd for usd, _ in priced), default=0.0)

    def is_beaten(option: AnyPriced) -> bool:
        usd = option.usd_per_hour
        probability = option.probability_met
        if usd is None or probability is None:
            return False
        chance = shown_chance(probability)
        is_far = probability <= FAIR and usd >= _FAR_DEARER * lowest_usd > 0
        others = (other for other in priced if other != (usd, chance))
        return is_far or any(
            other_usd <= usd and other_chance >= chance for other_usd, other_chance in others
        )

    kept: tuple[list[AnyPriced], list[AnyPriced]] = ([], [])
    for option in options:
        kept[is_beaten(option)].append(option)
    return kept


def beaten_notes(options: Sequence[Priced], risk: float | None) -> list[Note]:
    """Return which options are left out because others beat them (`split_beaten`)."""
    names = ", ".join(
        f"{option.gpu_profile_id} ({usd_words(option.usd_per_hour)})" for option in options
    )
    wanted = SAFE if risk is None else 1 - risk
    text = (
        f"Left out, because an option above costs no more and is at least as likely: {names}. "
        f"Prices are those of a probability of {wanted:.10g}; of profiles that do not reach it, "
        "those of their highest."
    )
    return [Note(text, "soft")] if names else []

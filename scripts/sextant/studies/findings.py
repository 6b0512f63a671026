"""What a paper claims beside what was measured here."""

from collections.abc import Sequence
from typing import NamedTuple

from sextant.pages.sections import Table
from sextant.pages.wording import yes_or_no


class Finding(NamedTuple):
    """A claim of a paper, and what was seen here."""

    claim: str
    here: str
    holds: bool | None
    """None where what could tell was not measured, or shows neither."""


def findings_table(found: Sequence[Finding], claim: str) -> Table:
    """Return a row a finding; `claim` is the label of its first column."""
    rows = [(each.claim, each.here, yes_or_no(each.holds)) for each in found]
    return Table((claim, "Here", "Holds"), rows, text_columns=(0, 1, 2))


def findings_words(found: Sequence[Finding], whose: str) -> str:
    """Count the claims that hold; `whose` is e.g. `the paper's {} findings`."""
    hold, refuted, unknown = (
        sum(each.holds is holds for each in found) for holds in (True, False, None)
    )
    return (
        f"of {whose.format(len(found))} {hold} hold here, {refuted} do not, {unknown} cannot be "
        "told."
    )

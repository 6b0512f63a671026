"""What the report opens with: what to rent for each SLO, what it costs, how far it is from limits.

Of each LLM a card: its measured answer, or that of the best judged predictor.
"""

from collections.abc import Sequence

import pandas as pd

from sextant.answer.page import of_points, section
from sextant.answer.text import OPEN_WORDS, chance, loss_words, next_words, price_words
from sextant.base.rows import Row, group_by
from sextant.decide.headroom import outlook
from sextant.facts.slo import SLO
from sextant.report.load_curves import load_curves
from sextant.report.slo_answers import deployment
from sextant.report.store_tables import MEASURED, Tables


def decisions(tables: Tables, answers: Sequence[Row]) -> list[Row]:
    """Return `source, slo, heading, cards, unanswered, curves` of each of `slo_answers`.

    A card is the answer for an LLM with its `outlook` (None where nothing is recommended, or a
    predictor decides without latencies), and `others`, the answers of other predictors. `curves`
    are those of `load_curves`, `what_ifs` sections of the page.
    """
    found: list[Row] = []
    for answer in answers:
        slo = SLO(**answer["slo"])
        curves = load_curves(tables, answer["source"], slo)
        cards = []
        for (_,), rows in group_by(answer["answers"], "llm_id").items():
            first, *others = rows  # the best judged predictor first
            cards.append({**first, "outlook": _outlook(first, curves, slo), "others": others})
        sections = _what_ifs(tables, answer["source"], curves, slo, f"what-if-{len(found)}")
        about = {name: answer[name] for name in ("source", "slo", "heading", "unanswered")}
        found.append({**about, "cards": cards, "curves": curves, "what_ifs": sections})
    return found


def _what_ifs(tables: Tables, source: str, curves: pd.DataFrame, slo: SLO, place: str) -> list[str]:
    """Return a section to change the question in, of each LLM that was measured."""
    prices = {row["gpu_profile_id"]: row["usd_per_hour"] for row in tables["gpu_profile"]}
    if slo.lengths:  # its answers rest on some of the points alone
        return []
    measured = curves[curves["predictor"] == MEASURED].groupby("llm_id")
    made = {llm_id: of_points(own, prices, slo) for llm_id, own in measured}
    return [
        section(basis, place=f"{place}-{number}", fold=llm_id)
        for number, (llm_id, basis) in enumerate(made.items())
        if basis is not None
    ]


def _outlook(row: Row, curves: pd.DataFrame, slo: SLO) -> Row | None:
    own = curves
    for name in ("predictor", "llm_id", "gpu_profile_id"):
        own = own[own[name] == row[name]]
    return outlook(own, slo, row["replicas"], row["usd_per_hour"]) if len(own) else None


def card_lines(card: Row, slo: Row) -> tuple[str, list[tuple[str, str]]]:
    """Return a card's price in words, and labels and words of what else it says."""
    about = card["outlook"]
    price = price_words(about) if about else f"{card['usd_per_hour']:,.2f} USD/h"
    lines = []
    if card["probability_met"] is not None:
        is_open = about and about["is_open"]
        rests_on = f"; {OPEN_WORDS}" if is_open else ""
        lines.append(
            ("Probability", f"{chance(card['probability_met'])} to keep the SLO{rests_on}")
        )
    if about:
        lines.append(("If a replica is lost", loss_words(about, slo)))
    # A predictor that decides at once compares no profiles.
    if card["alternatives"] or card["users_per_replica"] is not None:
        best = card["alternatives"][:1]
        lines.append(
            ("Next best", next_words(best[0]) if best else "no other GPU profile meets it")
        )
    if card["others"]:
        said = [f"{row['predictor']}: {deployment(row)}" for row in card["others"]]
        lines.append(("Other predictors", "; ".join(said)))
    return price, lines

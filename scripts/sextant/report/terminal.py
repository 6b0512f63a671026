"""The report as text for a terminal."""

from collections.abc import Sequence
from pathlib import Path

from sextant.base.rows import Row
from sextant.pages.wording import aligned, number, percent
from sextant.report.capacity_answers import capacity_blocks
from sextant.report.slo_answers import (
    deployment,
    miss_words,
    slo_answers,
    slo_words,
    summaries,
    verdict,
)
from sextant.report.store_tables import MEASURED, price_lines, read_tables

_MAX_SIDE_BY_SIDE = 3

_RATES = ("success_rate", "overspend", "so_score", "mape_nttft", "mape_itl")
_RATE_NAMES = ("S", "O", "S/O", "MAPE nTTFT", "MAPE ITL")


def summary_text(database: Path) -> str:
    """Return the recommendations and scores of a store; raises InputError as `read_tables` does."""
    tables = read_tables(database)
    blocks = [_summary_block(row, len(tables["slo"])) for row in summaries(tables)]
    blocks += [_slo_block(answer) for answer in slo_answers(tables)]
    blocks += capacity_blocks(tables)
    if not blocks:
        return "The store has no SLO, so there is nothing to recommend."
    return "\n\n".join([*blocks, "\n".join(price_lines(tables))])


def _summary_block(summary: Row, n_slos: int) -> str:
    lines = [f"{summary['source']}: means over {n_slos} SLOs; the first of them in full below"]
    rows = [
        [row["predictor"], *(percent(row[name]) for name in _RATES), number(row["n_slos_judged"])]
        for row in summary["means"]
    ]
    if rows:
        lines += _indented([["predictor", *_RATE_NAMES, "SLOs judged"], *rows])
    return "\n".join(lines)


def _slo_block(answer: Row) -> str:
    lines = [f"{answer['heading']}: {slo_words(answer['slo'])}"]
    # Many predictors do not fit a line; their scores are below.
    predictors = [*answer["held_out_by"]] if len(answer["held_out_by"]) <= _MAX_SIDE_BY_SIDE else []
    header = ["LLM", "recommended", "USD/h", "basis", *(f"unseen: {p}" for p in predictors)]
    rows = [[row["llm_id"], *_answer_cells(row, answer, predictors)] for row in answer["answers"]]
    rows += [[llm_id, "neither measured nor predicted"] for llm_id in answer["unanswered"]]
    lines += _indented([header, *rows]) if rows else ["  no LLM is known"]
    scores = [_score_cells(score) for score in answer["scores"]]
    if scores:
        lines += ["", *_indented([["predictor", *_RATE_NAMES, "LLMs", "note"], *scores])]
    return "\n".join(lines)


def _answer_cells(row: Row, answer: Row, predictors: Sequence[str]) -> list[str]:
    basis = row["basis"] if row["basis"] == MEASURED else f"predicted by {row['predictor']}"
    unseen = []
    for predictor in predictors if row["basis"] == MEASURED else ():
        guess = answer["held_out_by"][predictor].get(row["llm_id"])
        unseen.append(f"{deployment(guess)} {verdict(guess)}" if guess else "–")
    if row["gpu_profile_id"] is None:
        return [f"none; {miss_words(row)}", "–", basis, *unseen]
    return [deployment(row), number(row["usd_per_hour"]), basis, *unseen]


def _score_cells(score: Row) -> list[str]:
    cells = [score["predictor"], *(percent(score[name]) for name in _RATES)]
    return [*cells, number(score["n_llms"]), score["note"] or ""]


def _indented(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]

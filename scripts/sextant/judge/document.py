"""What a comparison of predictors tells: tables of scores and accuracy, as text and as JSON."""

from collections.abc import Sequence

import pandas as pd

from sextant.judge.comparison import Comparison
from sextant.judge.figures import Figures, GroupFigures
from sextant.judge.score_figures import score_charts, score_key_figures
from sextant.pages.blocks import Block, Document, Facts, Note, Section, Table

_HEADER = ("points", "MAPE %", "median %", "inside %", "high/low", "CRPS", "rank")
_LEGEND = (
    "MAPE, median: mean and median of |predicted - measured| / measured.",
    "inside: share of the points inside the 90% intervals; high/low: upper end of an interval over "
    "its lower end, median.",
    "CRPS: error and width in one, of the logarithm; 0 is best.",
    "rank: Spearman's correlation of an interval's width and the error; above 0, wide intervals "
    "are where the errors are.",
)
_HELD_OUT = {"llm": "LLM", "gpu": "GPU type", "engine": "engine", "engine_version": "version"}
_BY = {"engine": "engine ", "llm_kind": "LLM: ", "training": ""}
"""What stands before a group's name."""


def comparison_document(comparison: Comparison) -> Document:
    """Return the tables of a comparison; its data are `Comparison.to_dict`."""
    blocks: list[Block] = []
    if comparison.scenarios:
        scored = [row for row in comparison.predictors if row["so_score"] is not None]
        source = comparison.scenarios[0]["source"]
        blocks.append(score_key_figures(scored))
        blocks += score_charts(source, [row for row in scored if row["overspend"] is not None])
    for name, groups in comparison.groups.items():
        of = _HELD_OUT[comparison.hold_out]
        title = f"{name}, each {of} predicted from the other {of}s"
        metrics = dict.fromkeys(each.metric for each in groups)
        blocks.append(Section(title, [accuracy_table(groups, metric) for metric in metrics]))
    if comparison.groups:
        blocks.append(Facts(_LEGEND))
    blocks += [Note(sentence, "warning") for sentence in comparison.left_out]

    accuracies = {
        key
        for groups in comparison.groups.values()
        for each in groups
        for key in each.figures.flat(each.metric)
    }
    if comparison.scenarios:
        for rows in (comparison.predictors, comparison.scenarios):
            table = pd.DataFrame(rows)
            labels = {column: column for column in table if column not in accuracies}
            blocks.append(Table.of_frame(table, labels))
    return Document("Predictors judged", blocks, comparison.to_dict())


def accuracy_table(groups: Sequence[GroupFigures], metric: str) -> Table:
    """Return the figures of one metric, a row for each group."""
    rows = [
        (_BY.get(each.by, "") + each.group, *_cells(each.figures))
        for each in groups
        if each.metric == metric
    ]
    return Table((metric.upper(), *_HEADER), rows)


def _cells(figures: Figures) -> list[str]:
    in_percent = [None if share is None else 100 * share for share in figures.shares]
    values = (*in_percent, figures.high_over_low, figures.crps, figures.spearman)
    forms = (".1f", ".1f", ".0f", ".2f", ".3f", ".2f")
    shown = (
        "–" if value is None else format(value, form)
        for value, form in zip(values, forms, strict=True)
    )
    return [f"{figures.n:,}", *shown]

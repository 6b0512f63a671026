"""The section of the report that says how much to trust predictions."""

from collections.abc import Sequence

import numpy as np

from sextant.answer.option import Option
from sextant.base.files import Row, group_by
from sextant.judge.score_figures import score_charts
from sextant.pages.blocks import Block, Chart, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.words import NO_BREAK, percent, plural
from sextant.points.frame import FLOOR_MS
from sextant.report.answers import (
    by_source,
    marked,
    predictor_means,
    priced_cell,
    score_blocks,
)
from sextant.report.stored import (
    TARGET_NAMES,
    SLOReport,
    Tables,
    measured_word,
    prediction_pairs,
    sources,
)


def trust_blocks(tables: Tables, reports: Sequence[SLOReport]) -> list[Block]:
    """Return how well predictors did for LLMs that were hidden from them."""
    words = (
        "Each measured LLM was hidden in turn and recommended for from the others, among the GPU "
        "profiles that it fits on; only static_policy, one answer for all, is chosen in hindsight. "
        "MAPE is the mean absolute error relative to the measured latency. An LLM that no profile "
        "serves within the limits is left out; failed requests enter no latency. ▲ first measures "
        "the hidden LLM on two reference GPU profiles, and is not credited for these."
    )
    scores = by_source(tables, score_blocks)
    if not scores:
        return [Note(words), Note("No predictor was judged.", "soft")]
    blocks: list[Block] = [Note(words), *scores]

    for (source,), rows in group_by(tables["score"], "source").items():
        judged = [row for row in predictor_means(rows) if row["overspend"] is not None]
        named = [{**row, "predictor": marked(row["predictor"])} for row in judged]
        blocks += score_charts(source, named)

    for report in reports:
        if report.held_out:
            title = f"{report.heading}: recommendations for hidden LLMs"
            blocks.append(Section(title, [_held_out_table(report)], is_detail=True))

    # A predictor's latencies are the same for every SLO: one figure each.
    drawn: dict[tuple[str, str], Chart] = {}
    for report in reports:
        for predictor in (score["predictor"] for score in report.scores):
            pairs = prediction_pairs(tables, report.slo, report.source, predictor)
            if pairs and (report.source, predictor) not in drawn:
                of_source = "" if len(sources(tables)) < 2 else f" · {report.source}"
                name = f"{predictor}{of_source}"
                svg = prediction_figure(pairs, f"Predicted against measured, {name}")
                caption = (
                    f"{plural(len(pairs), 'point')}, at the percentiles of {report.slo.slo_id}."
                )
                chart = Chart(svg, caption, marked(predictor) + of_source, f"prediction {name}")
                drawn[report.source, predictor] = chart
    if drawn:
        words = (
            "A mark is an LLM that the predictor was not shown, on a GPU profile at a load. On the "
            "line a prediction is exact; below it, the predictor is too hopeful."
        )
        title = "Predicted against measured latencies of hidden LLMs"
        blocks.append(Section(title, [Note(words), *drawn.values()], is_detail=True))

    return blocks


def _held_out_table(report: SLOReport) -> Table:
    """Return the measured optimum of each LLM beside what each predictor recommended for it."""
    rows = []
    for answer in report.recommendations:
        if not answer.is_measured:
            continue
        row = [answer.llm_id, priced_cell(answer.option)]
        for row_by_llm in report.held_out.values():
            guess = row_by_llm.get(answer.llm_id)
            if guess is None:
                row.append("–")
                continue
            verdict = "(not judged)"
            if guess["is_success"] is not None:
                extra = percent(guess["overspend"]).replace(" ", NO_BREAK)
                verdict = f"✓{NO_BREAK}+{extra}" if guess["is_success"] else "✗"
            row.append(f"{priced_cell(Option.of(guess))} {verdict}")
        rows.append(row)

    header = ["LLM", f"optimum ({measured_word(report.source)})", *map(marked, report.held_out)]
    note = (
        "✓ carries all users within the limits, at so much above the optimum's cost; ✗ does not; "
        "not judged: no profile meets the SLO."
    )
    return Table(header, rows, range(len(header)), note=note)


def prediction_figure(pairs: Sequence[Row], title: str) -> str:
    """Draw `prediction_pairs`: a panel per latency, a mark per LLM, whose mean error is named."""
    panels = []
    for name, words in TARGET_NAMES.items():
        true = f"true_{name}_ms"
        predicted = f"{name}_ms"
        known_pairs = [pair for pair in pairs if pair[true] and pair[predicted] is not None]
        values = [pair[column] for pair in known_pairs for column in (true, predicted)]
        shown = [value for value in values if value > FLOOR_MS] or [0.5, 2.0]
        ends = [min(shown) / 1.3, max(shown) * 1.3]
        axis = Axis("", is_log=True, low=ends[0], high=ends[1])
        labels = (f"Measured {words} (ms)", f"Predicted {words} (ms)")
        x, y = (axis._replace(label=label) for label in labels)
        lines = [Curve("", ends, ends, is_reference=True)]
        errors = []
        for (llm_id,), llm_pairs in group_by(known_pairs, "llm_id").items():
            errors += [abs(pair[predicted] - pair[true]) / pair[true] for pair in llm_pairs]
            drawn = [pair for pair in llm_pairs if pair[predicted] > FLOOR_MS]
            across, up = ([pair[column] for pair in drawn] for column in (true, predicted))
            lines.append(Curve(llm_id, across, up, is_marks=True))
        mean_error = percent(float(np.mean(errors))) if errors else "–"
        panels.append(Panel(f"{words}: mean error {mean_error}", x, y, lines))
    return panels_figure(panels, title, height_in=3.0, has_points=True)

"""The page of judged predictors: S/O of each, with the figure."""

from html_page import Page, figure_texts
from sextant.judge.comparison import Comparison
from sextant.judge.document import comparison_document
from sextant.judge.score_figures import score_charts
from sextant.pages.page import as_page


def judged(predictor: str, success: float, overspend: float | None, score: float) -> dict:
    row = {"predictor": predictor, "success_rate": success, "overspend": overspend}
    return {**row, "so_score": score, "fit_seconds": 1.5}


ROWS = [
    judged("static_policy", 0.5, 0.068, 0.651),
    judged("roofline", 0.8, 0.0625, 0.863),
    judged("none_succeeds", 0.0, None, 0.0),
]
COMPARISON = Comparison(ROWS, [{"source": "archive:a", "slo_id": "paper"}], {}, [])


def test_the_page_opens_with_the_scores_and_has_the_figure() -> None:
    html = as_page(comparison_document(COMPARISON))
    first, second = Page(html).text.split("S/O of ")[1:3]
    assert first.startswith("roofline 86.3 % S 80 %, O 6.25 %")
    assert second.startswith("static_policy 65.1 % S 50 %, O 6.8 %")
    texts = figure_texts(html)
    assert {"roofline: S/O 86.3 %", "static_policy: S/O 65.1 %", "S/O 80 %"} <= {*texts}
    assert not any("none_succeeds" in text for text in texts), "without a success, no overspend"


def test_predictors_on_one_spot_have_one_mark_and_alone_no_figure() -> None:
    alike = [judged(name, 1.0, 0.0, 1.0) for name in ("a", "b")]
    assert score_charts("s", alike) == []
    (chart,) = score_charts("s", [*alike, ROWS[0]])
    assert "a: S/O 100 %, b: S/O 100 %" in figure_texts(chart.svg)

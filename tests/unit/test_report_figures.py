"""What the report's figures show: read from their SVG, without a store."""

from html_page import figure_texts
from sextant.points.frame import FLOOR_MS
from sextant.report.figures import prediction_figure
from sextant.report.overview import predictor_means


def score(predictor: str, success_rate, overspend, so_score) -> dict:
    return {
        "predictor": predictor,
        "slo_id": "a",
        "success_rate": success_rate,
        "overspend": overspend,
        "so_score": so_score,
        "mape_nttft": None,
        "mape_itl": None,
    }


def test_means_are_over_the_slos_that_have_a_value():
    rows = [
        score("worse", 0.2, 0.0, 1 / 3),
        score("better", 0.5, 0.2, 0.6),
        score("better", 0.0, None, 0.0),
        score("better", None, None, None),
        score("measured", 1.0, 0.0, 1.0),
    ]
    first, second = predictor_means(rows)
    assert (first["predictor"], second["predictor"]) == ("worse", "better")
    assert second["success_rate"] == 0.25 and second["overspend"] == 0.2
    assert second["so_score"] == 0.3 and second["mape_itl"] is None


def pair(llm_id: str, nttft_ms, true_nttft_ms) -> dict:
    return {
        "llm_id": llm_id,
        "gpu_profile_id": "1xa",
        "nttft_ms": nttft_ms,
        "true_nttft_ms": true_nttft_ms,
        "itl_ms": 10.0,
        "true_itl_ms": 10.0,
    }


def test_predictions_have_a_panel_per_llm_with_its_error():
    pairs = [pair("one", 1.5, 1.0), pair("one", FLOOR_MS, 1.0), pair("two", 2.0, 2.0)]
    drawn = figure_texts(prediction_figure(pairs, "t"))
    # Mean of 50 % and 100 %: a prediction of 0, which has no place on the axes, still counts.
    assert {"one: 75 %", "two: 0 %"} <= set(drawn)
    assert not [text for text in drawn if "e-" in text], "the axes reach down to the floor"

"""What the report's figures show: read from their SVG, without a store."""

from html_page import figure_texts
from sextant.points.frame import FLOOR_MS
from sextant.report.figures import prediction_figure, score_figure
from sextant.report.overview import limit_grid, predictor_means


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


def test_every_predictor_has_its_mark_and_score():
    rows = [
        score("llm_pilot", 0.8, 0.199, 0.8005),
        score("paris", 0.8, 0.199, 0.8005),
        score("hopeless", 0.0, None, 0.0),
        score("unjudged", None, None, None),
    ]
    drawn = figure_texts(score_figure(rows, "t"))
    assert {"llm_pilot: S/O 80 %", "paris ▲: S/O 80 %", "S/O 60 %"} <= set(drawn)
    assert not any("unjudged" in text or "hopeless" in text for text in drawn)


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


def slo(slo_id: str, nttft_ms: float, itl_ms: float, users: int) -> dict:
    return {
        "slo_id": slo_id,
        "nttft_ms": nttft_ms,
        "itl_ms": itl_ms,
        "percentile": 50,
        "users": users,
    }


def test_a_grid_is_the_mean_over_users_and_counts_a_promise_once():
    slos = [
        slo("paper", 100.0, 50.0, 200),
        slo("same as paper", 100.0, 50.0, 200),
        slo("more users", 100.0, 50.0, 1000),
        slo("slower", 100.0, 75.0, 200),
        slo("hard", 5.0, 50.0, 200),
    ]
    values = (0.8, 0.8, 0.2, 0.9, None)
    scores = [{"slo_id": s["slo_id"], "so_score": v} for s, v in zip(slos, values, strict=True)]
    grid = limit_grid(slos, scores)
    assert grid.header == ["", "ITL ≤ 50 ms", "ITL ≤ 75 ms"]
    assert grid.rows == [["nTTFT ≤ 5 ms", "–", "–"], ["nTTFT ≤ 100 ms", "50 %", "90 %"]]


def test_limits_that_are_no_grid_make_none():
    slos = [slo(str(i), 1.0 + i, 9.0 + i, 8) for i in range(5)]
    scores = [{"slo_id": str(i), "so_score": 0.5} for i in range(5)]
    assert limit_grid(slos, scores) is None
    assert limit_grid(slos[:1], scores[:1]) is None


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

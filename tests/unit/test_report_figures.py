"""What the report's figures show: read from their SVG, without a store."""

from xml.etree import ElementTree

import pytest

from html_page import SVG, figure_texts
from sextant.points.frame import FLOOR_MS
from sextant.report.all_figures import ReportFigures
from sextant.report.latency_figures import (
    latency_axes,
    latency_figure,
    n_not_drawn,
    prediction_figure,
    profile_looks,
)
from sextant.report.score_figures import limit_grid_figure, score_figure
from sextant.report.score_means import LimitGrid, limit_grid, predictor_means


def profile(gpu_id: str, n_gpus: int) -> dict:
    return {"gpu_profile_id": f"{n_gpus}x{gpu_id}", "gpu_id": gpu_id, "n_gpus": n_gpus}


def ids(profiles: list[dict]) -> list[str]:
    return [row["gpu_profile_id"] for row in profiles]


def test_colour_tells_the_gpu_type_and_the_line_the_number():
    profiles = [profile(gpu_id, n) for gpu_id in "ab" for n in (1, 2, 4)]
    looks = profile_looks(ids(profiles), profiles)
    assert looks.of["1xa"]["color"] == looks.of["4xa"]["color"] != looks.of["1xb"]["color"]
    assert looks.of["2xa"]["linestyle"] == looks.of["2xb"]["linestyle"]
    assert len({look["linestyle"] for look in looks.of.values()}) == 3
    assert [label for label, _ in looks.legend] == ["a", "b", "1 GPU", "2 GPUs", "4 GPUs"]
    assert [label for label, _ in looks.points_legend] == ["a", "b"]


@pytest.mark.parametrize(
    ("profiles", "more"),
    [
        ([profile("a", 1), profile("a", 2)], []),
        ([profile("a", 1), profile("b", 1)], ["no longer in the sheet"]),
        ([profile("a", 1), profile("b", 1), {**profile("b", 1), "gpu_profile_id": "spot"}], []),
    ],
)
def test_where_type_and_number_do_not_tell_profiles_apart_each_has_its_own_look(profiles, more):
    names = [*ids(profiles), *more]
    looks = profile_looks(names, profiles)
    assert [label for label, _ in looks.legend] == names
    assert len({str(look) for look in looks.of.values()}) == len(names)


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
        score("dear", 0.5, 6.0, 0.0),
        score("hopeless", 0.0, None, 0.0),
        score("unjudged", None, None, None),
    ]
    drawn = figure_texts(score_figure(rows, "t"))
    assert "llm_pilot (80 %)" in drawn and "paris (80 %)" in drawn
    assert "dear (0 %, O 600 %)" in drawn
    assert "Without any success, hence without overspend: hopeless" in drawn
    assert not any("unjudged" in text for text in drawn)
    assert "measures it on reference profiles" in drawn
    alone = figure_texts(score_figure(rows[:1], "t"))
    assert "no measurement of the new LLM" in alone
    assert "measures it on reference profiles" not in alone


def test_labels_of_equal_scores_do_not_cover_each_other():
    rows = [score(f"predictor-{i}", 0.8, 0.2, 0.8) for i in range(6)]
    root = ElementTree.fromstring(score_figure(rows, "t"))
    labels = [t for t in root.iter(f"{SVG}text") if "predictor" in "".join(t.itertext())]
    places = [node.get("transform") or (node.get("x"), node.get("y")) for node in labels]
    assert len(places) == len(set(places)) == 6


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
    assert [second[f"n_slos{end}"] for end in ("", "_judged", "_with_success")] == [3, 2, 1]


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
    assert grid.nttft_ms == [5.0, 100.0] and grid.itl_ms == [50.0, 75.0]
    assert grid.so_score[100.0, 50.0] == pytest.approx(0.5)
    assert grid.so_score[100.0, 75.0] == 0.9 and grid.so_score[5.0, 50.0] is None
    drawn = figure_texts(limit_grid_figure({"rf": grid}, "t"))
    assert {"rf", "50", "90", "–", "5", "100", "75"} <= set(drawn)


def test_limits_that_are_no_grid_make_none():
    slos = [slo(str(i), 1.0 + i, 9.0 + i, 8) for i in range(5)]
    scores = [{"slo_id": str(i), "so_score": 0.5} for i in range(5)]
    assert limit_grid(slos, scores) is None
    assert limit_grid(slos[:1], scores[:1]) is None


def test_a_grid_without_a_single_judged_slo_is_drawn():
    assert figure_texts(limit_grid_figure({"a": LimitGrid([1.0], [2.0], {(1.0, 2.0): None})}, "t"))


def pair(llm_id: str, nttft_ms, true_nttft_ms) -> dict:
    return {
        "llm_id": llm_id,
        "gpu_profile_id": "1xa",
        "nttft_ms": nttft_ms,
        "true_nttft_ms": true_nttft_ms,
        "itl_ms": 10.0,
        "true_itl_ms": 10.0,
    }


LOOKS = profile_looks(["1xa"], [profile("a", 1)])


def test_predictions_have_a_panel_per_llm_with_its_error():
    pairs = [pair("one", 1.5, 1.0), pair("one", FLOOR_MS, 1.0), pair("two", 2.0, 2.0)]
    drawn = figure_texts(prediction_figure(pairs, LOOKS, "t"))
    # Mean of 50 % and 100 %: a prediction of 0, which has no place on the axes, still counts.
    assert {"one", "two", "75 %", "0 %"} <= set(drawn)
    assert not [text for text in drawn if "e-" in text], "the axes reach down to the floor"
    assert n_not_drawn(pairs) == 1


def test_many_llms_fill_several_rows():
    names = [f"llm-{i:02}" for i in range(23)]
    drawn = figure_texts(prediction_figure([pair(name, 1.0, 2.0) for name in names], LOOKS, "t"))
    assert set(names) <= set(drawn)
    assert drawn.count("Predicted ITL") == 3


def test_many_points_carry_no_number_of_users():
    def drawn(n_points: int) -> list[str]:
        points = [
            {"gpu_profile_id": "1xa", "level": 700 + i, "throughput_tok_s": 10.0 + i,
             "output_tokens_per_usd": 10.0 + i, "median_ttft_ms": 5.0, "median_itl_ms": 5.0}
            for i in range(n_points)
        ]  # fmt: skip
        return figure_texts(latency_figure(points, LOOKS, latency_axes(points), {}, "t"))

    assert "719" in drawn(20)
    assert not any(text.startswith("7") and len(text) == 3 for text in drawn(21))


def test_names_that_differ_only_in_what_a_path_cannot_hold_get_files_of_their_own():
    figures = ReportFigures()
    for name in ("latency a/b", "latency a b", "latency a_b", "../..", "x" * 300):
        figures.add(name, name)
    names = list(figures.files)
    assert names[:4] == ["latency_a_b", "latency_a_b_2", "latency_a_b_3", "figure"]
    assert len(names[4]) == 100

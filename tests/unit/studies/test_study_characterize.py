"""The study `characterize`: curves over users, and what does not fit."""

import pandas as pd
import pytest

from cells import (
    TOO_LARGE,
    blocks_of,
    column,
    failed_request,
    request,
    study_data,
    text_of,
    write_cell,
)
from sextant.pages.blocks import Chart, Table
from sextant.points.run import EarlyStop, LeftOut, LevelMedians
from sextant.points.verdict import ProbeOutcome, Verdict
from sextant.studies.characterize import analyse

STOP = EarlyStop(LevelMedians(4, 420, 333.0, 160.0), 100.0, 50.0, 3.0)


def level(users, n, ttft_s, latency_s=1.0):
    """Requests of 2 tokens and equal latencies."""
    times = {"first_token_s": ttft_s, "last_token_s": latency_s}
    return [request(float(users), **times) for _ in range(n)]


@pytest.fixture
def data(tmp_path):
    """One LLM that saturates at 2 of 4 users, one that still rises, two that do not run."""
    steady = [*level(1, 5, 0.1), *level(2, 10, 0.2), *level(4, 10, 0.5)]
    rising = [*level(1, 5, 0.1), *level(4, 20, 0.1)]
    left_out = LeftOut((8.0, 16.0), STOP)
    no_heads = {"n_heads": 7, "n_kv_heads": 7, "n_gpus": 2}
    unsupported = Verdict(ProbeOutcome.HEADS_CANNOT_BE_SPLIT, no_heads)
    cells = [
        write_cell(tmp_path / "a", steady, run={"left_out": left_out}, llm_id="a"),
        write_cell(tmp_path / "b", rising, llm_id="b", batch_weight_tokens=500),
        write_cell(tmp_path / "c", llm_id="c", verdict=TOO_LARGE),
        write_cell(tmp_path / "d", llm_id="d", verdict=unsupported),
    ]
    return study_data(tmp_path, cells)


def test_every_cell_has_a_verdict_and_says_why(data):
    rows = analyse(data).numbers["feasibility"].set_index("llm_id")
    assert rows["verdict"].tolist() == ["fits", "fits", "does not fit", "unsupported"]
    assert rows.loc["c", "why"] == "the weights take 9.000 GiB of 8.000 GiB"
    assert pd.isna(rows.loc["a", "why"])
    assert rows.loc["a", "levels"] == "1, 2, 4"
    assert rows.loc["a", "levels_left_out"] == f"8, 16: {STOP.reason}"
    assert pd.isna(rows.loc["b", "levels_left_out"])
    assert rows.loc["b", "batch_weight_tokens"] == 500
    assert rows.loc["b", "n_server_starts"] == 1
    assert pd.isna(rows.loc["c", "batch_weight_tokens"])


def test_saturation_is_the_fewest_users_near_the_highest_throughput(data):
    rows = analyse(data).numbers["saturation"].set_index("llm_id")
    # 10, 20 and 20 tokens in 10 s; then 10 and 40.
    assert rows["max_throughput_tok_s"].to_dict() == {"a": 2.0, "b": 4.0}
    assert rows["saturated_users"].to_dict() == {"a": 2.0, "b": 4.0}
    assert rows["is_still_rising"].to_dict() == {"a": False, "b": True}
    assert rows.loc["a", "ttft_growth"] == pytest.approx(5.0)
    # Two tokens: the gap is what the first token leaves of the second.
    assert rows.loc["a", "itl_growth"] == pytest.approx(0.5 / 0.9)


def test_the_page_has_a_section_an_llm(data):
    sections = analyse(data).sections
    titles = [section.title for section in sections]
    assert titles == ["Feasibility", "Saturation", "Curves: a", "Curves: b"]
    assert "Variant" not in blocks_of(sections[0], Table)[0].header
    assert column(sections[0], "Left out, and why")[0].startswith("8, 16")
    curves = sections[2]
    assert blocks_of(curves, Chart)[0].svg.startswith("<svg")
    assert "25 in all, at least 5 a point" in text_of(curves)
    assert column(curves, "Users") == ["1", "2", "4"]


def test_a_point_without_a_served_request_is_a_gap(tmp_path):
    rows = [*level(1, 3, 0.1), *(failed_request(2.0) for _ in range(3))]
    data = study_data(tmp_path, [write_cell(tmp_path / "a", rows)])
    analysis = analyse(data)
    (row,) = analysis.numbers["saturation"].to_dict("records")
    assert (row["n_levels"], row["most_users"], row["is_still_rising"]) == (1, 1.0, False)
    points = analysis.numbers["points"]
    assert points["n_failed"].tolist() == [0, 3]
    assert pd.isna(points["median_itl_ms"].iloc[1])
    assert "3 failed" in text_of(analysis.sections[-1])

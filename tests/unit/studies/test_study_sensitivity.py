"""The study `sensitivity`: which part of a deployment moves latency."""

import itertools

import pandas as pd
import pytest

from cells import blocks_of, column, request, study_data, text_of, write_cell
from sextant.pages.blocks import Chart
from sextant.studies.sensitivity import analyse, importance

TTFT_OF_LLM = ("llm", "1xGPU", "median_ttft_ms")


def level(users, ttft_s, itl_s, n=3):
    """Requests of two tokens."""
    times = {"first_token_s": ttft_s, "last_token_s": ttft_s + itl_s}
    return [request(float(users), **times) for _ in range(n)]


def variant_cell(folder, cores, memory_gib, weight, latencies_s):
    """A cell of one server set-up with a level for each of (users, TTFT, ITL)."""
    name = f"c{cores}-m{memory_gib}-w{weight}"
    rows = [row for each in latencies_s for row in level(*each)]
    variant = {"cpu_cores": cores, "memory_limit_gib": memory_gib}
    values = {"variant_id": name, "batch_weight_tokens": weight}
    return write_cell(folder / name, rows, variant=variant, **values)


@pytest.fixture(scope="module", autouse=True)
def fewer_forests():
    """A forest a seed and factor: two seeds show what ten do, in a fifth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sextant.studies.sensitivity.N_SEEDS", 2)
        yield


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    """TTFT depends on the batch weight, the more the more users; ITL on users alone."""
    folder = tmp_path_factory.mktemp("study")
    cells = []
    for cores, memory, weight in itertools.product((1, 2), (8, 16), (500, 1000, 2000)):
        times_s = [(users, 0.1 * users * 1000 / weight, 0.01 * users) for users in (1, 2, 4)]
        cells.append(variant_cell(folder, cores, memory, weight, times_s))
    return analyse(study_data(folder, cells))


def by_factor(found):
    return found["factors"].set_index("factor")


def test_the_forest_finds_what_latency_depends_on(analysis):
    ttft, itl = analysis.numbers["importance"]
    assert (ttft["target"], itl["target"]) == ("median_ttft_ms", "median_itl_ms")
    assert ttft["n_points"] == 36
    scores = by_factor(ttft)
    assert scores["n_values"].tolist() == [2, 2, 3, 3]
    assert list(scores.index) == ["cpu_cores", "memory_limit_gib", "batch_weight_tokens", "users"]
    assert scores["mdi_mean"].sum() == pytest.approx(1.0)
    assert scores.loc[["batch_weight_tokens", "users"], "mdi_mean"].min() > 0.3
    assert scores.loc[["cpu_cores", "memory_limit_gib"], "mdi_mean"].max() < 0.02
    assert by_factor(itl).loc["users", "mdi_mean"] > 0.95
    assert by_factor(itl).loc["users", "permutation_mean"] > 1.0
    assert ttft["batch_weight_over"]["cpu_cores"] > 20
    assert ttft["r2_mean"] > 0.8
    assert ttft["r2_sd"] > 0


def test_latency_over_batch_weight_at_the_most_users(analysis):
    ratios = analysis.numbers["batch_weight"]
    (row,) = ratios.to_dict("records")
    assert (row["users"], row["smallest_tokens"], row["largest_tokens"]) == (4.0, 500, 2000)
    # 800 + 40 ms against 200 + 40 ms.
    assert row["e2e_ratio"] == pytest.approx(840 / 240)
    assert "llm on 1xGPU with 4 users: 3.5 (LLM-Pilot: about 2.8" in analysis.summary


def test_the_page_shows_both_importances_and_the_curve(analysis):
    first, second, third = (section.title for section in analysis.sections)
    assert (first, second) == tuple(f"Importance for {it}: llm on 1xGPU" for it in ("TTFT", "ITL"))
    assert third == "Latency against batch weight"
    assert all(blocks_of(section, Chart)[0].svg.startswith("<svg") for section in analysis.sections)
    factors = ["CPU cores", "host memory", "batch weight", "users"]
    assert column(analysis.sections[0], "Factor") == factors
    assert column(analysis.sections[2], "Batch weight (tokens)") == ["500", "1,000", "2,000"]
    assert analysis.summary.startswith("Importance (MDI) for TTFT of llm on 1xGPU: ")
    assert "36 points: medians of 12 server set-ups" in text_of(analysis.sections[0])


def points(n=12, **columns):
    rows = {"cpu_cores": 2.0, "memory_limit_gib": [8.0, 16.0] * (n // 2)}
    rows |= {"batch_weight_tokens": 1000, "users": range(1, n + 1)}
    rows |= {"median_ttft_ms": [10.0 * users for users in range(1, n + 1)]}
    return pd.DataFrame({**rows, **columns})


def test_factors_that_were_not_varied_or_not_known_take_no_part():
    found = importance(points(), *TTFT_OF_LLM, seed=1)
    assert found.not_varied == ["cpu_cores", "batch_weight_tokens"]
    is_left_out = found.factors.set_index("factor")["mdi_mean"].isna()
    assert [*is_left_out[is_left_out].index] == found.not_varied
    again = importance(points(), *TTFT_OF_LLM, seed=1)
    pd.testing.assert_frame_equal(again.factors, found.factors)
    partly = importance(points(memory_limit_gib=[None, 8.0] * 6), *TTFT_OF_LLM, seed=1)
    assert partly.not_known == ["memory_limit_gib"]
    nowhere = importance(points(memory_limit_gib=None), *TTFT_OF_LLM, seed=1)
    assert "memory_limit_gib" in nowhere.not_varied


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (points(6), "6 points have the latency, 8 are needed"),
        (points(median_ttft_ms=5.0), "all points have the same latency"),
        (points(users=4, memory_limit_gib=8.0), "no factor was varied"),
        (points(median_ttft_ms=None), "0 points have the latency, 8 are needed"),
    ],
)
def test_without_ground_no_forest_is_grown(rows, reason):
    found = importance(rows, *TTFT_OF_LLM, seed=1)
    assert found.reason == reason
    assert pd.isna(found.r2_mean)
    assert found.factors["mdi_mean"].isna().all()


def test_a_series_has_equal_cores_and_memory(tmp_path):
    cells = [
        variant_cell(tmp_path, 1, 8, 500, [(4, 1.0, 0.1)]),
        variant_cell(tmp_path, 1, 8, 1000, [(4, 0.5, 0.1)]),
        variant_cell(tmp_path, 2, 8, 2000, [(4, 0.1, 0.1)]),
    ]
    found = analyse(study_data(tmp_path, cells))
    (row,) = found.numbers["batch_weight"].to_dict("records")
    assert (row["smallest_tokens"], row["largest_tokens"]) == (500, 1000)
    assert "TTFT of llm on 1xGPU: no importance (3 points have the latency" in found.summary
    assert not blocks_of(found.sections[0], Chart)

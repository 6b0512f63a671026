"""The characterization that ships: what it holds, and that a store gives it back."""

import pytest

from sextant.characterizations.shipped import SHIPPED, export_points, load_shipped
from sextant.store.build import build_store, gpu_profile_rows, gpu_rows, llm_rows

POINTS = SHIPPED / "llm-pilot" / "points.csv"


@pytest.fixture(scope="module")
def known():
    return load_shipped()


def test_it_is_the_published_study(known) -> None:
    assert known.source == "archive:llm-pilot"
    assert len(known.points) == 528
    assert known.points["llm_id"].nunique() == len(known.llms) == 10
    assert known.points["gpu_profile_id"].nunique() == len(known.profiles) == 14
    assert {llm.dtype for llm in known.llms.values()} == {"float16"}
    tried = known.feasibility
    pairs = known.points[["llm_id", "gpu_profile_id"]].drop_duplicates()
    assert len(tried) == 140 and tried["is_feasible"].sum() == len(pairs) == 66
    assert known.descriptions[0].longest_request_tokens == 946
    assert known.profiles["1xA100-40GB"].usd_per_hour == 4.09625


def test_two_points_are_published_medians_without_requests(known) -> None:
    published = known.points[known.points["n_ok"].isna()]
    assert len(published) == 2
    assert published[["n_failed", "input_tokens", "p90_itl_ms"]].isna().all(axis=None)
    assert published[["median_nttft_ms", "median_itl_ms"]].notna().all(axis=None)


def test_a_store_of_these_points_gives_the_same_table(known, tmp_path) -> None:
    names = {"input_tokens": "mean_input_tokens", "output_tokens": "mean_output_tokens"}
    points = known.points.rename(columns=names).assign(level=known.points["users"])
    rows = points.astype(object).where(points.notna(), None)
    database, out = tmp_path / "sextant.duckdb", tmp_path / "points.csv"
    build_store(
        database,
        {
            "llm": llm_rows(known.llms),
            "gpu": gpu_rows(known.profiles),
            "gpu_profile": gpu_profile_rows(known.profiles),
            "point": rows.to_dict("records"),
        },
        {},
    )
    assert export_points(database, None, out) == 528
    assert out.read_bytes() == POINTS.read_bytes()

"""Throughput per replica along the diagonals of replicas × users."""

import pandas as pd
import pytest

from cells import frame
from sextant.studies.pods import PODS_THROUGHPUT_TOK_S, analyse, diagonals
from sextant.studies.study import StudyData


def data_of(points: pd.DataFrame) -> StudyData:
    return StudyData(points, pd.DataFrame(), pd.DataFrame(), [], {}, {})


def point(replicas: int, users: int, throughput_tok_s: float, n_ok: int = 50) -> dict:
    return {
        "variant_id": f"{replicas}-pods",
        "replicas": replicas,
        "users": users,
        "level": float(users),
        "throughput_tok_s": throughput_tok_s,
        "n_ok": n_ok,
        "scenario_kind": "closed_loop",
    }


def test_the_papers_table_gives_the_papers_figures():
    # "the relative standard deviation of throughputs per pod never exceeds 5% (2% on average)"
    found = diagonals(PODS_THROUGHPUT_TOK_S)
    assert 0.04 < found["relative_sd"].max() < 0.05
    assert found["relative_sd"].mean() == pytest.approx(0.02, abs=0.002)
    assert found["relative_deviation"].max() == pytest.approx(0.0656, abs=1e-4)


def test_throughput_is_divided_by_the_replicas_before_it_is_compared():
    points = frame([point(1, 4, 100.0), point(2, 8, 220.0), point(2, 4, 150.0)])
    analysis = analyse(data_of(points))
    (setting,) = analysis.numbers["settings"]
    assert list(setting["diagonals"]["mean_tok_s"]) == [105.0]  # 100 and 110; 75 stands alone
    assert setting["diagonals"]["relative_deviation"].tolist() == pytest.approx([5 / 105])
    assert "at most 4.76" in analysis.summary

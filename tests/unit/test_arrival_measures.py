"""How bursty arrivals are, by figures that pandas and a pencil give too."""

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.workload.arrivals import SCALES_S, measure_arrivals, median_measures, relative_errors
from sextant.workload.generators import Gamma


def test_figures_are_those_of_pandas():
    times = Gamma(2.0, 0.3).times(duration_s=20_000, seed=1)
    found = measure_arrivals(times)
    gaps = pd.Series(times).diff().dropna()
    assert found["gap_cv"] == pytest.approx(gaps.std() / gaps.mean(), rel=1e-12)
    for scale_s in SCALES_S:
        counts = pd.Series(np.bincount((times // scale_s).astype(int)))
        whole = counts.iloc[: int(times[-1] // scale_s)]
        assert found[f"dispersion_{scale_s}s"] == pytest.approx(whole.var() / whole.mean())
        if scale_s <= 60:
            assert found[f"busiest_{scale_s}s"] == counts.max()


def test_what_cannot_be_said_is_null():
    assert measure_arrivals(np.array([3.0])) == {
        "gap_cv": None,
        "busiest_1s": 1.0,
        "dispersion_1s": None,
        "busiest_10s": 1.0,
        "busiest_60s": 1.0,
    }
    at_once = measure_arrivals(np.full(9, 0.5))
    assert at_once == {"gap_cv": None, "busiest_1s": 9, "busiest_10s": 9, "busiest_60s": 9}


@pytest.mark.parametrize("times", [[2.0, 1.0], [-1.0, 1.0], [0.0, 1e12], [0.0, np.nan], [np.nan]])
def test_times_that_no_trace_has_are_refused(times):
    with pytest.raises(InputError, match="arrival_s"):
        measure_arrivals(np.array(times))


def test_no_request_is_told():
    with pytest.raises(InputError, match="no request arrives"):
        measure_arrivals(np.empty(0))


def test_medians_and_errors():
    samples = [{"a": 1.0, "b": None}, {"a": 5.0, "b": None}, {"a": 2.0, "b": 3.0}]
    assert median_measures(samples) == {"a": 2.0, "b": None}
    truth = {"a": 4.0, "b": 1.0, "zero": 0.0, "c": None}
    model = {"a": 5.0, "b": None, "zero": 1.0, "c": 1.0}
    assert relative_errors(truth, model) == {**{"a": 0.25, "b": None, "zero": None, "c": None}}

"""Latency limits and load: what a row may say, and which latencies meet it."""

import numpy as np
import pytest

from sextant.base.errors import InputError
from sextant.facts.slo import SLO, load_slos
from sextant.report.answers import slo_words

LENGTHS = np.array([1000.0, 201.0])
LATENCIES = np.array([[0.5, 20.0], [1.0, 40.0], [np.nan, 20.0]])  # TTFT 500 and 1,000 ms


def made(**fields) -> SLO:
    return SLO("s", **{"percentile": 50, "users": 8} | fields)


@pytest.mark.parametrize(
    ("limits", "met"),
    [
        ({"ttft_ms": 500}, [True, False, False]),
        ({"nttft_ms": 1.0}, [True, True, False]),
        ({"itl_ms": 20}, [True, False, True]),
        ({"tpot_ms": 39.9, "ttft_ms": 1e4}, [True, False, False]),
        ({"e2e_ms": 4500}, [True, False, False]),  # 500 + 200 x 20
        ({"e2e_ms": 4499}, [False, False, False]),
    ],
)
def test_any_latency_may_have_the_limit(limits, met) -> None:
    slo = made(**limits)
    assert slo.meets(LATENCIES, LENGTHS).tolist() == met
    worst = np.max([*slo.ratios(LATENCIES, LENGTHS).values()], axis=0)
    assert (worst <= 1).tolist() == met


def test_each_limit_may_have_a_percentile_of_its_own() -> None:
    slo = made(ttft_ms=955, ttft_percentile=95, tpot_ms=40, e2e_ms=1e5)
    assert slo.percentiles == (95, 50)
    assert made(ttft_ms=1, ttft_percentile=90, nttft_ms=1, percentile=99).percentiles == (99, 99)
    # The p50 of E2E from the p95 of TTFT (1.91 times the median) and the p50 of ITL.
    assert slo.latencies(np.array([0.955, 20.0]), LENGTHS)["e2e"] == pytest.approx(500 + 4000)


def test_a_request_rate_becomes_users_by_littles_law() -> None:
    slo = made(ttft_ms=1e4, users=None, request_rate_rps=8)
    carried = slo.carried(np.array([9, 18, 1]), LATENCIES, LENGTHS[None].repeat(3, 0))
    assert carried[:2] == pytest.approx([9 / 4.5, 18 / 9.0]) and np.isnan(carried[2])
    assert (slo.load, made(itl_ms=1).load) == (8, 8)
    assert slo.scaled(load=2).load == 16 and slo.scaled(limits=2).ttft_ms == 2e4


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a\t\t\t50\t8\t", ["line 2", "no limit", "ttft_ms"]),
        ("a\t100\t\t50\t8\t2", ["line 2", "two loads", "one of them"]),
        ("a\t100\t\t50\t\t", ["line 2", "no load"]),
        ("a\t100\t\t\t8\t", ["line 2", "ttft_ms has no percentile"]),
        ("a\t100\t\t95\t\t-1", ["line 2", "request_rate_rps"]),
        ("a\t0\t\t95\t1\t", ["line 2", "ttft_ms", "above 0"]),
        ("a\tnan\t\t95\t1\t", ["line 2", "ttft_ms", "milliseconds"]),
        ("a\t1e308\t\t95\t1\t", ["line 2", "ttft_ms", "0.000001 to 1,000,000,000"]),
        ("a\t\t5e-324\t95\t1\t", ["line 2", "itl_ms", "0.000001 to 1,000,000,000"]),
        ("a\t100\t\t95\t1000000000\t", ["line 2", "users", "1 to 100,000,000"]),
    ],
)
def test_a_wrong_row_is_named(tmp_path, row, words) -> None:
    path = tmp_path / "slos.tsv"
    path.write_text(f"slo_id\tttft_ms\titl_ms\tpercentile\tusers\trequest_rate_rps\n{row}\n")
    with pytest.raises(InputError) as raised:
        load_slos(path)
    assert all(word in str(raised.value) for word in [str(path), *words]), raised.value


def test_requests_have_both_lengths_or_those_of_the_workload(tmp_path) -> None:
    slo = made(ttft_ms=1000, input_tokens=1000, output_tokens=200)
    lengths = np.array([[1100.0, 180.0], [1300.0, 200.0], [np.nan, 200.0]])
    assert slo.is_of(lengths).tolist() == [True, False, False]
    assert made(ttft_ms=1000).is_of(lengths).all()
    assert slo_words(slo).endswith("for 8 users of 1,000 input and 200 output tokens")
    path = tmp_path / "slos.tsv"
    header = "slo_id\titl_ms\tpercentile\tusers\tinput_tokens\toutput_tokens\n"
    path.write_text(f"{header}a\t50\t50\t8\t1500\t250\nb\t50\t50\t8\t\t\n")
    found = load_slos(path)
    assert found["a"].lengths == {"input_tokens": 1500, "output_tokens": 250}
    assert found["b"].lengths == {}
    for row, told in (
        ("1500\t", "line 2, field 'input_tokens, output_tokens': one length"),
        ("0\t250", "line 2, field 'input_tokens': .*1 to 100,000,000"),
    ):
        path.write_text(f"{header}a\t50\t50\t8\t{row}\n")
        with pytest.raises(InputError, match=told):
            load_slos(path)


def test_the_requests_of_a_trace_have_its_lengths() -> None:
    with pytest.raises(InputError, match="'input_tokens, output_tokens': a trace has requests of"):
        SLO("s", itl_ms=50, percentile=50, trace_id="t", input_tokens=1000, output_tokens=200)

"""What a load keeps in memory: next to nothing per request, and no more after a long one."""

import tracemalloc
from array import array
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sextant.engine.http import ServerAddress
from sextant.load.client import Exchange, ExchangeTimes
from sextant.load.measure import LoadTargets
from sextant.load.quantiles import exact_statistics
from sextant.load.rows import RequestLog
from sextant.load.schedules import _ClosedLoop
from sextant.load.source import RequestSource, draw_in_order, prepare
from sextant.points.metrics import SHOWN, STATISTICS
from sextant.workload.prompts import RandomTokens
from stub_server import DONE, event

N_TOKENS = 64


def an_exchange(number: int) -> Exchange:
    times = ExchangeTimes(1, 1, sent_ns=10**9 + number)
    exchange = Exchange(prepare("m", f"{number}", np.arange(4), N_TOKENS), 0, times)
    exchange.head.http_status = 200
    return exchange


def an_answer(number: int) -> Exchange:
    exchange = an_exchange(number)
    rng = np.random.default_rng(number)
    exchange.token_offsets_ms = array("f", np.cumsum(rng.exponential(20, N_TOKENS)))
    times = exchange.times
    times.first_token_ns = times.sent_ns + int(exchange.token_offsets_ms[0] * 1e6)
    times.last_token_ns = times.sent_ns + int(exchange.token_offsets_ms[-1] * 1e6)
    exchange.input_tokens, exchange.output_tokens = 4, N_TOKENS
    return exchange


def peak_bytes(run: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_request_that_was_read_leaves_a_few_bytes() -> None:
    source = RequestSource("m", draw_in_order([4], [N_TOKENS], RandomTokens(99)), 0)
    load = _ClosedLoop(LoadTargets([ServerAddress("http://host:1", "m")], 1.0, 0), source)
    pieces = [*map(event, range(1, N_TOKENS + 1)), DONE]

    def read(n: int) -> None:
        for number in range(n):
            exchange = an_exchange(number)
            for place, piece in enumerate(pieces):
                exchange.reader.feed(piece, 2 * 10**9 + place)
            load._judge(exchange)

    tracemalloc.start()
    kept = []
    for n in (200, 300, 900):
        read(n)
        kept.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert load.log.n_ok == 1400, load.log.first_failure
    assert (kept[2] - kept[1]) / 900 < 16


def test_a_load_four_times_as_long_needs_no_more_memory_for_its_results() -> None:
    def results(log: RequestLog) -> None:
        log.statistics(SHOWN, STATISTICS, is_due=True)
        for _ in log.batches(level=8.0, epoch_ns=0):
            pass

    logs = [RequestLog(), RequestLog()]
    for log, n in zip(logs, (1500, 6000), strict=True):
        for number in range(n):
            log.add(an_answer(number % 100))
    results(logs[0])  # what is imported does not count
    short, long = (peak_bytes(lambda log=log: results(log)) for log in logs)
    assert long < 1.1 * short


@settings(max_examples=200)
@given(
    arrays(float, st.integers(1, 60), elements=st.floats(0, 1e300)),
    st.integers(1, 5),
)
def test_quantiles_by_pieces_are_those_of_numpy(values: np.ndarray, n_pieces: int) -> None:
    fractions = STATISTICS | {"least": 0.0, "most": 1.0}
    pieces = np.array_split(values, n_pieces)
    found = exact_statistics(lambda: ({"it": piece} for piece in pieces), ["it"], fractions)["it"]
    quantiles = np.quantile(values, list(fractions.values())).tolist()
    assert found == {
        "mean": pytest.approx(float(np.mean(values))),
        **dict(zip(fractions, quantiles, strict=True)),
    }


def test_what_has_no_values_has_no_statistics() -> None:
    pieces = [{"none": np.array([np.nan])}, {"none": np.array([])}]
    found = exact_statistics(lambda: pieces, ["none"], {"p50": 0.5})
    assert found == {"none": {"mean": None, "p50": None}}

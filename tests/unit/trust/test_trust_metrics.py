"""Metrics of somebody else's server: odd ones are one error, or are read as what they say."""

import json
import random

import pytest

from served_metrics import Server, matrix
from sextant.base.errors import InputError
from sextant.trace.metric_samples import MOST_BYTES, MetricText, parse_readings, read_files
from sextant.trace.metrics_trace import draw_trace

ODD = (
    *("NaN", "+Inf", "-Inf", "-5", "1e308", "1e400", "", "x", "1_000", "0x10", "١", "9" * 400),
    *("\x00", "\x1b[2J", "{}", "}", '"', "\\", "le", '{le="', "null", "[]", "1e-400"),
)


def text_of(n: int) -> str:
    server = Server("vllm", "llama", extra={"instance": "a"})
    for number in range(n):
        server.serve(100 + number, 20 + number, 0.1, 0.5)
    return server.text()


def read(texts: list[str]) -> str:
    """Return what came of some texts: the error, or how many requests were drawn."""
    try:
        readings = parse_readings(
            [MetricText("m", text) for text in texts], None if texts[0].startswith("{") else 60
        )
        return str(draw_trace(readings, seed=0).table.num_rows)
    except InputError as error:
        assert str(error).isprintable()
        return "error"


@pytest.mark.parametrize("is_query", [False, True])
def test_odd_metrics_are_one_error_or_some_requests(is_query: bool) -> None:
    choose = random.Random(1)
    first, second = text_of(5), text_of(30)
    whole = json.dumps(matrix([(0.0, first), (60.0, second)]))
    outcomes = set()
    for _ in range(300):
        text = whole if is_query else second
        for _ in range(choose.randint(1, 3)):
            begin = choose.randrange(len(text))
            end = begin + choose.choice((0, 1, 5, 40))
            text = text[:begin] + choose.choice(ODD) + text[end:]
        outcomes.add(read([text] if is_query else [first, text]))
    assert "error" in outcomes and len(outcomes) > 1


def test_a_file_beyond_the_limit_or_none_at_all_is_one_error(tmp_path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    for path in (large, tmp_path, tmp_path / "none", "/dev/zero"):
        with pytest.raises(InputError):
            read_files([path])

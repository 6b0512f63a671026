"""Metrics over HTTP: a server's twice, or Prometheus' in parts, with a token, within bounds."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from served_metrics import Server, matrix
from sextant.base.errors import InputError
from sextant.engine.http import ServerAddress
from sextant.engine.prometheus import MetricsQuery, fetch_metrics
from sextant.trace.metric_samples import parse_readings
from sextant.trace.model_metrics import metrics_by_model
from stub_server import StubServer, answer_text


def counted(n: int) -> str:
    server = Server("vllm", "llama")
    for _ in range(n):
        server.serve(100, 20, 0.1, 0.5)
    return server.text()


def prometheus(token: str | None = None):
    """Answer range queries as Prometheus does: one request is finished each second."""

    async def answer(request, writer) -> None:
        path = request.head.split(" ", 2)[1]
        asked = {name: value[0] for name, value in parse_qs(urlsplit(path).query).items()}
        status, text = "200 OK", ""
        if token and f"Authorization: Bearer {token}\r\n" not in request.head:
            status = "401 Unauthorized"
        elif "query" not in asked:
            status = "404 Not Found"
        else:
            start, end, step = (float(asked[name]) for name in ("start", "end", "step"))
            n_points = round((end - start) / step) + 1
            times = [start + number * step for number in range(n_points)]
            text = json.dumps(matrix([(at_s, counted(round(at_s))) for at_s in times]))
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        writer.write((head + text).encode())

    answer.takes_get = True
    return answer


def query(url: str, last_s: float = 600.0, token: str | None = None, **more) -> MetricsQuery:
    return MetricsQuery(ServerAddress(url, "", token), last_s=last_s, **more)


def test_prometheus_is_asked_for_the_names_of_all_engines_within_a_time() -> None:
    with StubServer(prometheus()) as server:
        texts = fetch_metrics(query(server.url, match='namespace="prod"'), now=lambda: 1000.0)
        asked = parse_qs(urlsplit(server.requests[0].head.split(" ", 2)[1]).query)
    (model,) = metrics_by_model(parse_readings(texts))
    assert model.n_answered.sum() == 600
    assert model.edges_s[[0, -1]].tolist() == [400.0, 1000.0]
    assert asked["query"][0].startswith('{__name__=~"') and asked["query"][0].endswith(
        ',namespace="prod"}'
    )
    assert all(request.head.startswith("GET ") for request in server.requests)


def test_a_long_time_is_read_in_parts_that_lose_nothing() -> None:
    with StubServer(prometheus()) as server:
        texts = fetch_metrics(query(server.url, 1200.0, step_s=1.0), now=lambda: 1200.0)
    assert len(texts) == 3
    (model,) = metrics_by_model(parse_readings(texts))
    assert model.n_windows == 1200
    assert model.n_answered.tolist() == [1] * 1200


def test_a_server_is_read_twice() -> None:
    texts = iter([counted(10), counted(70)])

    async def answer(_, writer) -> None:
        text = next(texts)
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())

    answer.takes_get = True
    clock = iter([100.0, 160.0])
    waits: list[float] = []
    with StubServer(answer) as server:
        read = fetch_metrics(
            query(f"{server.url}/metrics", 60.0), now=lambda: next(clock), wait=waits.append
        )
    (model,) = metrics_by_model(parse_readings(read))
    assert waits == [60.0]
    assert model.n_answered.tolist() == [60]


def test_a_token_goes_to_its_server_alone_and_a_wrong_one_is_said() -> None:
    with StubServer(prometheus("secret-token")) as server:
        assert fetch_metrics(query(server.url, 60.0, "secret-token"), now=lambda: 100.0)
        with pytest.raises(InputError, match=r"answers 401.*--token-env") as caught:
            fetch_metrics(query(server.url, 60.0, "wrong-token"), now=lambda: 100.0)
    assert "wrong-token" not in str(caught.value)


def test_what_is_no_prometheus_too_long_or_too_fine_is_refused() -> None:
    page = answer_text("<html>a page</html>", "404 Not Found")
    for answer, said in (
        (page, r"answers 404.*base URL"),
        (answer_text("x", length=10), "no whole"),
    ):
        with StubServer(answer) as server, pytest.raises(InputError, match=said):
            fetch_metrics(query(server.url), now=lambda: 1000.0)
    with pytest.raises(InputError, match="--step"):
        fetch_metrics(query("http://127.0.0.1:9", 86400.0, step_s=1.0))

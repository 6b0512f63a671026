"""Metrics over HTTP, read only: of a server's `/metrics` twice, or of Prometheus over a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from sextant.base.errors import InputError
from sextant.engine.http import ServerAddress, get
from sextant.pages.words import duration_words
from sextant.trace.metric_names import metric_sheet
from sextant.trace.metric_samples import MOST_BYTES, MetricText

_METRICS = "/metrics"
_TIMEOUT_S = 60.0
_MOST_POINTS = 11_000
"""Points of a series that Prometheus returns at most."""
_POINTS_OF_PART = 500
"""Points of a series in one answer: a long time is read in parts, so that none is too large."""
_MOST_OF_PART = 64 << 20
_LEAST_STEP_S = 15.0
_WANTED_POINTS = 1440
_LEAST_POINTS = 2


@dataclass(frozen=True)
class MetricsQuery:
    """What is read, from where, and how much of it."""

    target: ServerAddress
    """A server's `/metrics`, or the base URL of Prometheus."""
    last_s: float
    """Time until now that is read of Prometheus; between two readings of a server."""
    step_s: float | None = None
    """Time between two values; None: as long as gives 1,440 of them, 15 s at least."""
    match: str = ""
    """Further matchers of labels, e.g. `namespace="prod"`."""

    def over(self, last_s: float) -> "MetricsQuery":
        """Return the query over another time."""
        return replace(self, last_s=last_s)

    @property
    def is_server(self) -> bool:
        """Whether the target is a server itself, not Prometheus."""
        return self.target.base_url.endswith(_METRICS)


def fetch_metrics(
    query: MetricsQuery,
    now: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
) -> list[MetricText]:
    """Return what a query reads.

    Raises:
        InputError: no whole answer in time and size, a refusal, or a wrong step.
    """
    if query.is_server:
        base_url = query.target.base_url.removesuffix(_METRICS)
        server = ServerAddress(base_url, "", query.target.api_key, query.target.ca_file)
        first = _read(server, _METRICS, now)
        wait(query.last_s)
        return [first, _read(server, _METRICS, now)]

    step_s = query.step_s or max(query.last_s / _WANTED_POINTS, _LEAST_STEP_S)
    n_points = int(query.last_s / step_s)
    if not _LEAST_POINTS <= n_points <= _MOST_POINTS:
        problem = f"{n_points:,} steps of {step_s:g} s in {duration_words(query.last_s)}"
        fix = f"give a step that leaves {_LEAST_POINTS} to {_MOST_POINTS:,} of them"
        raise InputError(problem, field="--step", fix=fix)

    matchers = [f'__name__=~"{metric_sheet().selector()}"', *filter(None, [query.match])]
    selector = "{" + ",".join(matchers) + "}"
    end_s = now()
    texts: list[MetricText] = []
    n_bytes = 0
    for begin in range(0, n_points + 1, _POINTS_OF_PART):
        end = min(begin + _POINTS_OF_PART - 1, n_points)
        begin_s = end_s - (n_points - begin) * step_s
        times = {"start": begin_s, "end": end_s - (n_points - end) * step_s, "step": step_s}
        asked = urlencode({"query": selector, **times}, quote_via=quote)
        texts.append(_read(query.target, f"/api/v1/query_range?{asked}", now))
        n_bytes += len(texts[-1].text)
        if n_bytes > MOST_BYTES:
            raise _too_much(query.target, f"more than {MOST_BYTES >> 20} MiB")
    return texts


def _read(target: ServerAddress, path: str, now: Callable[[], float]) -> MetricText:
    status, text = get(target, path, timeout_s=_TIMEOUT_S, most_bytes=_MOST_OF_PART)
    origin = target.base_url + path.partition("?")[0]
    if status is None and text:
        problem = f"{target.base_url}: {text}"
        raise InputError(problem, field="--prometheus", fix="check the address, and that it runs")
    if status is None:
        raise _too_much(target, f"no whole answer within {_TIMEOUT_S:g} s and 64 MiB")
    if status in (401, 403):
        fix = "give a token in an environment variable, and its name with --token-env"
        raise InputError(f"{origin} answers {status}", field="--prometheus", fix=fix)
    if status != 200:
        said = " ".join(text.split())[:200]
        fix = "give the base URL of Prometheus, or a server's URL that ends in /metrics"
        raise InputError(f"{origin} answers {status} ({said})", field="--prometheus", fix=fix)
    return MetricText(origin, text, now())


def _too_much(target: ServerAddress, problem: str) -> InputError:
    fix = "check the address; read a shorter time (--last), a longer --step, or fewer series "
    fix += "(--match)"
    return InputError(f"{target.base_url}: {problem}", field="--prometheus", fix=fix)

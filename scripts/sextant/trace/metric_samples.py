"""Readings of a server's metrics: its `/metrics` text, or what a query of Prometheus returned.

Only series that `metrics.yaml` names are kept.
"""

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import read_plain
from sextant.trace.metric_names import meanings_of

MOST_BYTES = 128 << 20
"""Size of a file, or of all answers of a server."""
_LINE = re.compile(r"([A-Za-z_:][\w:.]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+(-?[\d.]+))?(?:\s+#.*)?\s*")
_LABEL = re.compile(r'([A-Za-z_][\w.]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_LEAST_INTERVAL_S = 1.0
_LAST_S = 7.26e9
"""The year 2200, in seconds since 1970."""
LARGEST = 1e18
"""No counter of a server, and no finite edge of its histograms, has a larger value."""
_TWO = "give two or more, e.g. `curl -si URL/metrics > 1.txt`, and again some minutes later"
_QUERY = 'query the metrics themselves, e.g. {__name__=~"vllm:.*"}, without rate() or sum()'

Labels = tuple[tuple[str, str], ...]
Points = dict[float, float]


class MetricText(NamedTuple):
    """A text with metrics, and where it is from."""

    origin: str  #: File or URL, for errors.
    text: str
    at_s: float | None = None
    """When it was read, in seconds since 1970; None: unknown, or the text says it."""


@dataclass(frozen=True, eq=False)
class MetricSeries:
    """The values of a metric with certain labels over time, finite and in order."""

    name: str
    labels: Mapping[str, str]
    times_s: np.ndarray
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Readings:
    """All series of some texts."""

    series: Sequence[MetricSeries]
    is_dated: bool
    """Whether times count from 1970; else from the first snapshot."""
    notes: list[str] = field(default_factory=list)


def read_files(paths: Sequence[Path]) -> list[MetricText]:
    """Return the texts of files. Raises InputError for one that cannot be read."""
    texts = []
    for path in paths:
        try:
            texts.append(MetricText(str(path), read_plain(path, MOST_BYTES).decode()))
        except (OSError, UnicodeError) as error:
            fix = "give the text of /metrics, or the JSON of a query of Prometheus"
            problem = f"cannot be read ({' '.join(str(error).split())[:200]})"
            raise InputError(problem, file=path, fix=fix) from None
    return texts


def parse_readings(texts: Sequence[MetricText], interval_s: float | None = None) -> Readings:
    """Return the series of some texts, all snapshots or all answers to queries.

    Args:
        texts: what was read.
        interval_s: time between two snapshots, where they do not say when they were taken.

    Raises:
        InputError: a text is neither, has no known metric, or the time is not known.
    """
    if not texts:
        raise InputError("there are no metrics", field="source", fix=_TWO)
    is_query = [text.text.lstrip().startswith(("{", "[")) for text in texts]
    if all(is_query):
        return _parse_queries(texts, interval_s)
    if any(is_query):
        fix = "give either, all of the same servers"
        raise InputError("snapshots and answers to queries", file=texts[0].origin, fix=fix)
    return _parse_snapshots(texts, interval_s)


def _parse_snapshots(texts: Sequence[MetricText], interval_s: float | None) -> Readings:
    if len(texts) < 2:
        problem = "one snapshot tells no rate: counters count since the server's start"
        raise InputError(problem, file=texts[0].origin, fix=_TWO)

    bodies = [_without_head(text) for text in texts]
    dates = [text.at_s for text in bodies]
    is_dated = None not in dates
    if interval_s is not None and not any(text.at_s for text in texts):
        is_dated = False
        times_s = [number * interval_s for number in range(len(texts))]
    elif is_dated:
        times_s = [date for date in dates if date is not None]
    else:
        fix = "give --interval, e.g. --interval 10min; `curl -si` writes the time into the file"
        problem = "the snapshot does not say when it was taken"
        missing = next(text.origin for text in bodies if text.at_s is None)
        raise InputError(problem, file=missing, field="--interval", fix=fix)

    order = sorted(range(len(texts)), key=lambda number: times_s[number])
    for before, after in itertools.pairwise(order):
        if times_s[after] - times_s[before] < _LEAST_INTERVAL_S:
            problem = f"less than {_LEAST_INTERVAL_S:g} s after {texts[before].origin}"
            fix = "take the second some minutes later"
            raise InputError(problem, file=texts[after].origin, fix=fix)

    points: dict[tuple[str, Labels], Points] = defaultdict(dict)
    for number in order:
        n_before = sum(map(len, points.values()))
        n_lines = 0
        for name, labels, value in _samples(bodies[number]):
            n_lines += 1
            if meanings_of(name) and math.isfinite(value):
                points[name, labels][times_s[number]] = value
        if sum(map(len, points.values())) == n_before:
            raise _nothing_known(texts[number].origin, n_lines)
    return Readings(_series(points), is_dated)


def _without_head(text: MetricText) -> MetricText:
    """Return a text without the HTTP headers that `curl -i` writes, and the time that they say."""
    if not text.text.startswith("HTTP/"):
        return text
    head, _, body = text.text.replace("\r\n", "\n").partition("\n\n")
    date = re.search(r"^date:\s*(.+)$", head, re.I | re.M)
    at_s = text.at_s
    if date is not None:
        try:
            at_s = parsedate_to_datetime(date[1]).timestamp()
        except ValueError:
            fix = "take the snapshot again with `curl -si`"
            problem = f"{date[1]!r} is not the date of an answer"
            raise InputError(problem, file=text.origin, field="date", fix=fix) from None
    return MetricText(text.origin, body, at_s)


def _samples(text: MetricText) -> Iterator[tuple[str, Labels, float]]:
    """Yield the samples of a text; lines that are none of the format raise InputError."""
    for number, line in enumerate(text.text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        try:
            if match is None:
                raise ValueError
            value = float(match[3])
        except ValueError:
            problem = f"{line[:80]!r} is not a sample of a metric"
            fix = "give the text of /metrics as the server wrote it"
            raise InputError(problem, file=text.origin, row=number, fix=fix) from None
        labels = _LABEL.findall(match[2] or "")
        plain = tuple(sorted((name, _ESCAPED.sub(_unescaped, said)) for name, said in labels))
        yield match[1], plain, value


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _nothing_known(origin: str, n_lines: int) -> InputError:
    problem = f"none of its {n_lines:,} samples is a metric of a known engine"
    fix = "give the metrics of vLLM, SGLang, TGI or TensorRT-LLM; metrics.yaml names them"
    return InputError(problem, file=origin, fix=fix)


def _parse_queries(texts: Sequence[MetricText], interval_s: float | None) -> Readings:
    if interval_s is not None:
        problem = "answers of Prometheus say when each value was read"
        raise InputError(problem, field="--interval", fix="leave it out")

    points: dict[tuple[str, Labels], Points] = defaultdict(dict)
    n_results = 0
    n_native = 0
    for text in texts:
        for result in _results(text):
            n_results += 1
            labels = dict(result["metric"])
            name = labels.pop("__name__", None)
            if name is None:
                problem = f"the series {labels} has no name: it was computed"
                raise InputError(problem, file=text.origin, field="__name__", fix=_QUERY)
            if not meanings_of(name):
                continue
            if "histogram" in result or "histograms" in result:
                n_native += 1
                continue
            points[name, tuple(sorted(labels.items()))] |= _values(result, text.origin)

    if not points:
        raise _nothing_known(texts[0].origin, n_results)
    if len({at_s for values in points.values() for at_s in values}) < 2:
        problem = "all values are of one moment, which tells no rate"
        fix = "give the JSON of /api/v1/query_range, or two answers of /api/v1/query"
        raise InputError(problem, file=texts[0].origin, fix=fix)
    notes = [f"{n_native} native histograms are not read: scrape classic ones."] if n_native else []
    return Readings(_series(points), True, notes)


def _values(result: Mapping[str, Any], origin: str) -> Points:
    """Return the finite values of a series by their times."""
    try:
        values = result["values"] if "values" in result else [result["value"]]
        pairs = [(float(at_s), float(value)) for at_s, value in values]
        if not all(0 <= at_s <= _LAST_S for at_s, _ in pairs):
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        fix = "give the JSON of /api/v1/query_range as Prometheus answered it"
        problem = f"the series {str(result['metric'])[:200]} has no pairs of time and value"
        raise InputError(problem, file=origin, field="values", fix=fix) from None
    return {at_s: value for at_s, value in pairs if math.isfinite(value)}


def _results(text: MetricText) -> list[dict[str, Any]]:
    """Return the series of an answer of Prometheus."""
    fix = "give the JSON of /api/v1/query_range as Prometheus answered it"
    try:
        content = json.loads(text.text)
    except (ValueError, RecursionError) as error:
        problem = f"not JSON ({str(error)[:100]})"
        raise InputError(problem, file=text.origin, fix=fix) from None
    if isinstance(content, dict) and content.get("status") == "error":
        problem = f"Prometheus refused the query: {str(content.get('error'))[:300]}"
        raise InputError(problem, file=text.origin, fix=_QUERY)

    data = content.get("data", content) if isinstance(content, dict) else {"result": content}
    results = data.get("result") if isinstance(data, dict) else None
    is_series = isinstance(results, list) and all(
        isinstance(result, dict) and _are_labels(result.get("metric")) for result in results
    )
    if not is_series or not isinstance(results, list):
        problem = "not an answer to a query: no data.result with series"
        raise InputError(problem, file=text.origin, field="data.result", fix=fix)
    return results


def _are_labels(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _series(points: Mapping[tuple[str, Labels], Points]) -> list[MetricSeries]:
    series = []
    for (name, labels), values in points.items():
        times_s = np.array(sorted(values))
        in_order = np.array([values[at_s] for at_s in times_s.tolist()])
        if np.abs(in_order).max() > LARGEST:
            problem = f"{name} is {in_order[np.abs(in_order).argmax()]:g}"
            raise InputError(problem, field=name, fix="give metrics as the server wrote them")
        series.append(MetricSeries(name, dict(labels), times_s, in_order))
    return series

"""What a question says in place of a path: a name that ships, or the content of the file.

No path of a request is ever read: what it attaches is written as a file, under a name that is made
here, into the empty folder in which its question is answered.
"""

import base64
import binascii
import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError

TRACE = "trace.parquet"
"""The normalised trace of a question."""
_LONGEST_NAME = 100
_LOG_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".txt")
_METRICS_ENDINGS = {"{": ".json", "[": ".json"}
_NO_DISK = "leave it out: the server answers from what ships"
_NO_CALLS = "leave it out, and give the metrics themselves (`metrics`)"
REFUSED = {
    "database": _NO_DISK,
    "tune_policy": "leave it out: tune a policy on the command line",
    "probe_out": "leave it out: the answer has what was observed",
    **dict.fromkeys(("prometheus", "last", "step", "match", "token_env"), _NO_CALLS),
}
"""Options that would read or write the server's disk, or call somebody, and what to do instead."""
_PLAIN_LOG = ("time_unit", "where", "status_words", "start_time", "format", "columns")
_LOG_OPTIONS = (*_PLAIN_LOG, "ignore_unknown", "max_rate_rps", "max_rejected_fraction")
"""Options of `ingest` that stand beside a log."""


@dataclass
class Attached:
    """The files of a question, by name, and how its log is read."""

    files: dict[str, bytes] = field(default_factory=dict)
    log: str | None = None
    """The file that `ingest` makes the trace of; None: there is none."""
    log_options: dict[str, Any] = field(default_factory=dict)


Way = Callable[[str, Any, Attached], Any]
"""How an option is attached: returns what the library is told, and adds its files."""


def attach_config(keyword: str, value: Any, attached: Attached) -> str:
    """Return the path of an LLM's configuration: an object, or the name of one that ships."""
    if isinstance(value, Mapping):
        name = re.sub(r"[^\w.-]+", "__", str(value.get("_name_or_path") or "llm")).strip("._")
        name = name[:_LONGEST_NAME] or "llm"
        return _added(attached, f"{name}.json", json.dumps(value, indent=1))

    from sextant.facts.llm import shipped_config

    name = str(value).replace("/", "__").removesuffix(".json")
    if not isinstance(value, str) or shipped_config(name) is None:
        fix = "give the content of its config.json as an object, or a name of GET /v1/llms"
        raise InputError("this is no LLM that ships", field=keyword, fix=fix)
    return f"resources/llms/{name}.json"


def attach_rows(keyword: str, value: Any, attached: Attached) -> str:
    """Return the path of a table of rows, as objects."""
    if not isinstance(value, list) or not value or not all(isinstance(it, dict) for it in value):
        fix = 'give a list of objects, e.g. [{"gpu_profile_id": "1xH100-80GB", …}]'
        raise InputError("these are no rows", field=keyword, fix=fix)
    columns = list(dict.fromkeys(name for row in value for name in row))
    for row in value:
        for name, cell in row.items():
            if isinstance(cell, dict | list):
                problem = f"{name} of a row is not one value"
                raise InputError(problem, field=keyword, fix="give a number or a text")

    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(value)
    return _added(attached, f"{keyword}.csv", text.getvalue())


def attach_prices(keyword: str, value: Any, attached: Attached) -> str:
    """Return tables that ship, the path of a table of rows, or both with a comma between."""
    from sextant.ask.api_prices import API_PRICES, load_api_prices
    from sextant.facts.gpu import providers

    if keyword == "prices":
        names = providers()
    else:
        shipped = {listed.price.provider for listed in load_api_prices(API_PRICES)}
        names = ["all", *sorted(shipped)]
    parts = value if isinstance(value, list) and value else [value]
    named = [part for text in parts if isinstance(text, str) for part in text.split(",")]
    _check_names(keyword, [name.strip() for name in named], names, "or rows, a list of objects")
    rows = [row for row in parts if not isinstance(row, str)]
    table = [attach_rows(keyword, rows, attached)] if rows else []
    return ",".join([*table, *(name.strip() for name in named)])


def attach_source(keyword: str, value: Any, attached: Attached) -> list[str]:
    """Return names of characterizations that ship."""
    from sextant.points.folder import shipped_sources

    names = value if isinstance(value, list) and value else [value]
    _check_names(keyword, names, [*shipped_sources()])
    return names


def attach_workload(keyword: str, value: Any, attached: Attached) -> str:
    """Return the name of a use case that ships."""
    from sextant.workload.published import use_case_names

    _check_names(keyword, [value], use_case_names(), "or give a trace")
    return str(value)


def attach_trace(keyword: str, value: Any, attached: Attached) -> str:
    """Return the path of a trace: a log as text, or a normalised trace's Parquet in base64."""
    fix = 'give an object: {"name": "log.csv", "text": …} and options of `sextant ingest`, or '
    fix += '{"base64": …} of a normalised trace'
    if not isinstance(value, Mapping) or ("text" in value) == ("base64" in value):
        raise InputError("this is no trace", field=keyword, fix=fix)
    options = {name: it for name, it in value.items() if name not in ("name", "text", "base64")}
    for name, option in options.items():
        if name not in _LOG_OPTIONS or "base64" in value:
            raise InputError("a trace has no such key", field=f"{keyword}.{name}", fix=fix)
        check_plain(f"{keyword}.{name}", option)
    content = value.get("text", value.get("base64"))
    if not isinstance(content, str):
        raise InputError("the content is not text", field=keyword, fix=fix)
    if "base64" in value:
        attached.files[TRACE] = _decoded(keyword, content)
        return TRACE

    columns = options.get("columns")
    if columns is not None and "=" not in str(columns):
        fix = "write them here: arrival=ts,input_tokens=prompt,output_tokens=completion"
        raise InputError("no file is read", field=f"{keyword}.columns", fix=fix)
    attached.log = _added(attached, _log_name(value.get("name"), content), content)
    attached.log_options = options
    return TRACE


def attach_metrics(keyword: str, value: Any, attached: Attached) -> list[str]:
    """Return the paths of metrics, each as text: what /metrics shows, or JSON of a range query."""
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        fix = "give a list of texts: two snapshots of /metrics, or the JSON of range queries"
        raise InputError("these are no metrics", field=keyword, fix=fix)
    return [
        _added(attached, f"metrics-{n}{_METRICS_ENDINGS.get(text.lstrip()[:1], '.txt')}", text)
        for n, text in enumerate(texts, start=1)
    ]


def attach_policy(keyword: str, value: Any, attached: Attached) -> str:
    """Return the path of an autoscaling policy: its manifest, or CSV of replicas over time."""
    if not isinstance(value, str):
        raise InputError("this is no policy", field=keyword, fix="give the text of its file")
    ending = ".csv" if "t_s" in value.partition("\n")[0] else ".yaml"
    return _added(attached, f"policy{ending}", value)


WAYS: dict[str, Way] = {
    "hf_config": attach_config,
    "draft_config": attach_config,
    "probe": attach_rows,
    "prices": attach_prices,
    "api_prices": attach_prices,
    "source": attach_source,
    "workload": attach_workload,
    "trace": attach_trace,
    "metrics": attach_metrics,
    "policy": attach_policy,
}
"""How each option is attached that is a path, or may be one, on the command line."""

_LONGEST_TEXT = 2_000
_MOST_PARTS = 1_000


def check_plain(keyword: str, value: Any) -> None:
    """Raise InputError unless a value is a short text, a number, a truth value or a list of them.

    Texts are cut in no error: a long one is refused before anything quotes it.
    """
    parts = value if isinstance(value, list) else [value]
    is_short = len(parts) <= _MOST_PARTS and len(str(value)) <= _MOST_PARTS * _LONGEST_TEXT
    if not is_short or any(isinstance(it, str) and len(it) > _LONGEST_TEXT for it in parts):
        raise InputError("it is too long", field=keyword, fix="give a shorter value")
    if any(isinstance(it, dict | list) for it in parts):
        fix = "give a text or a number, as the command line has it"
        raise InputError("it is not one value", field=keyword, fix=fix)


def _check_names(keyword: str, names: list[Any], allowed: list[str], others: str = "") -> None:
    """Raise InputError for a name that is not allowed; `others` says what else may be given."""
    for name in names:
        if name not in allowed:
            fix = f"give one of {', '.join(allowed)}"
            fix = f"{fix}, {others}" if others else fix
            problem = "nothing that ships has this name, and the server reads no path"
            raise InputError(problem, field=keyword, fix=fix)


def _decoded(keyword: str, content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("this is not base64", field=keyword, fix="encode the file") from None


def _log_name(name: Any, content: str) -> str:
    """Return a name for a log: its own, without folders, where its ending is one that is read."""
    stem = re.sub(r"[^\w-]+", "_", Path(str(name or "")).stem)[:_LONGEST_NAME].strip("_")
    ending = Path(str(name or "")).suffix.lower()
    if ending not in _LOG_ENDINGS:
        ending = {"{": ".jsonl", "[": ".json"}.get(content.lstrip()[:1], ".csv")
    return f"{stem or 'log'}{ending}"


def _added(attached: Attached, name: str, text: str) -> str:
    """Add a file under a name that is free, and return the name."""
    while name in attached.files:
        name = f"other-{name}"
    attached.files[name] = text.encode("utf-8", "replace")
    return name

"""Reads the files of load tools: JSON, lines of JSON, several JSON values one after the other, or
YAML; and says what a file is that no load tool wrote.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import read_plain
from sextant.base.sheets import read_yaml
from sextant.points.tool_run import ResultFile
from sextant.trace.advice import likely_formats
from sextant.trace.documents import flat_object

_YAML = (".yaml", ".yml")
_BETWEEN = re.compile(r"[\s,]*")  # JSON values may follow each other with or without commas
_MARKS: tuple[tuple[frozenset[str], str, str], ...] = (
    (
        frozenset({"metadata", "metrics"}),
        "AIPerf's requests, one by one",
        "give profile_export_aiperf.json of the same folder",
    ),
    (
        frozenset({"benchmark", "model", "metric"}),
        "vLLM's records for PyTorch's dashboard",
        "give the file of the same name without .pytorch",
    ),
    (
        frozenset({"avg_latency", "latencies", "percentiles"}),
        "a result of `vllm bench latency`, which has no server",
        "measure a server with `vllm bench serve` or `sextant load`",
    ),
    (
        frozenset({"elapsed_time", "total_num_tokens", "tokens_per_second"}),
        "a result of `vllm bench throughput`, which has no server",
        "measure a server with `vllm bench serve` or `sextant load`",
    ),
    (
        frozenset({"batch_size", "input_len", "output_len", "latency"}),
        "a result of SGLang's bench_one_batch, which has no users",
        "measure a server with `python -m sglang.bench_serving` or `sextant load`",
    ),
    (
        frozenset({"status", "data"}),
        "an answer of Prometheus",
        "`sextant ingest` reads a server's metrics (--format prometheus)",
    ),
    (
        frozenset({"request_id", "start_time", "end_time", "error"}),
        "requests, one by one",
        "give the tool's summary, or read them as a trace with `sextant ingest`",
    ),
    (
        frozenset({"levels", "llm_id"}),
        "a summary of `sextant load`",
        "ask about it as it is: `sextant recommend --database FOLDER`",
    ),
    (
        frozenset({"key", "origin", "engine"}),
        "a cell that Sextant measured",
        "ask about it as it is: `sextant recommend --database FOLDER`",
    ),
)
"""Keys of files that are no results of a load tool's run, what they are, and what to do."""
_CONFIG = ("model_type", "architectures")


def read_results(path: Path, fix: str) -> list[ResultFile]:
    """Return the results of a file, in their order; none of an empty one.

    InputError, with `fix`: it cannot be read.
    """
    if path.suffix.lower() in _YAML:
        contents: list[Any] = [read_yaml(path)]
    else:
        contents = list(_json_values(path, fix))

    @cache
    def beside(name: str) -> Mapping[str, Any]:
        other = path.with_name(name)
        if not other.is_file():
            return {}
        content = read_yaml(other) if other.suffix in _YAML else next(_json_values(other, fix), {})
        return content if isinstance(content, Mapping) else {}

    return [ResultFile(path, content, beside) for content in contents]


def _json_values(path: Path, fix: str) -> Iterator[Any]:
    """Yield the JSON values of a file; those of a list are values of their own."""
    try:
        text = read_plain(path).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", file=path, fix=fix) from None
    decoder = json.JSONDecoder()
    start = _end_of(_BETWEEN.match(text, 0))
    while start < len(text):
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise _not_json(path, text, start, error, fix) from None
        yield from value if isinstance(value, list) else [value]
        start = _end_of(_BETWEEN.match(text, end))


def _end_of(match: re.Match[str] | None) -> int:
    return match.end() if match else 0


def _not_json(path: Path, text: str, start: int, error: Exception, fix: str) -> InputError:
    """Return why a value is not JSON: the file was cut off, or is another one."""
    line = text.count("\n", 0, start) + 1
    is_cut = isinstance(error, json.JSONDecodeError) and (
        error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
    )
    if is_cut and text[start] in "{[":
        problem = "the file was cut off within a result"
        fix = f"remove what begins in line {line}, or measure again"
        return InputError(problem, file=path, row=line, fix=fix)
    return InputError(f"not JSON ({error})", file=path, fix=fix)


def looks_like(content: Any) -> tuple[str, str] | None:
    """Return what a content is that no load tool wrote, and what to do with it; None: unknown."""
    if not isinstance(content, Mapping):
        return None
    if any(name in content for name in _CONFIG):
        return "an LLM's config.json", "name it with --configs, or ask with --hf-config"
    for keys, what, todo in _MARKS:
        if keys <= content.keys():
            return what, todo
    for name in likely_formats([*flat_object(dict(content))]):
        return f"a trace (format {name})", f"read it with `sextant ingest FILE --format {name}`"
    return None

"""The text of a source in blocks of whole lines; JSON documents become lines of requests.

A log of JSON is one object a line, an array, several objects that span lines, or objects that hold
lists of requests (`{"data": [...]}` of an API, `resourceSpans` of OTLP). All become JSON lines.
"""

import ast
import codecs
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sextant.base.errors import InputError

BLOCK_BYTES = 4 << 20
"""Text that is checked at a time. It bounds the memory, and sets the trace's row groups."""
BLOCK_LINES = 1 << 18  # of a block: the shortest lines take many times their bytes
MAX_LINE_BYTES = 16 << 20
MAX_DOCUMENT_BYTES = 256 << 20
"""The longest JSON value that is read as a whole; the elements of an array are read one by one."""
_MOST_DEPTH = 16
"""Objects and lists within each other that are looked through for requests."""
_MOST_LITERAL = 100_000  # letters
_BOM = b"\xef\xbb\xbf"
_ANY_VALUE = ("stringValue", "intValue", "doubleValue", "boolValue", "bytesValue")

Has = Callable[[dict[str, Any]], bool]


class RequestTest(NamedTuple):
    """How an object of JSON shows that it is a request."""

    has_tokens: Has
    has_time: Has
    """A request that failed has no tokens, but a time."""


def read_text_blocks(source: Path) -> Iterator[bytes]:
    """Yield the text of a file (`.gz` and `.zst` too) in blocks of lines, without its BOM.

    Raises InputError if a line is too long, OSError if the file is cut short or is not what its
    ending says.
    """
    with pa.input_stream(source, compression="detect") as stream:
        block = rest = b""
        is_start = True
        while chunk := stream.read(BLOCK_BYTES):
            if is_start:
                chunk = chunk.removeprefix(_BOM)
                is_start = False
            end = chunk.rfind(b"\n") + 1
            if end:
                yield from _in_parts(block)
                block = b"".join([rest, memoryview(chunk)[:end]])
                rest = chunk[end:]
            else:
                rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                problem = f"a line is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise InputError(problem, file=source, fix="end each row's line")
        yield from _in_parts(block + (rest + b"\n" if rest else b""))


def _in_parts(block: bytes) -> Iterator[bytes]:
    begin = 0
    if block.count(b"\n") > BLOCK_LINES:
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
        for end in ends[BLOCK_LINES - 1 :: BLOCK_LINES] + 1:
            yield block[begin:end]
            begin = end
    if begin < len(block):
        yield block[begin:]


def lines_of(text: bytes) -> list[str]:
    """Return the lines of a block."""
    return [line.rstrip("\r") for line in text.decode().removesuffix("\n").split("\n")]


def json_value(line: str) -> Any:
    """Return a line's JSON value; None: it is none, or not text that can be written."""
    try:
        value = json.loads(line)
        if "\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except (ValueError, RecursionError):
        return None
    return value


def flat_object(row: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return an object without objects within it: dots lead into these."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        inner = flat_object(value, f"{above}{name}.") if isinstance(value, dict) else {}
        flat |= inner or {above + name: value}
    return flat


def with_objects(row: dict[str, Any], parents: Collection[str]) -> dict[str, Any]:
    """Return a row in which texts that hold JSON objects are read, of the columns `parents`."""
    opened: dict[str, Any] = {}
    for name, value in row.items():
        if name in parents and isinstance(value, str) and value.lstrip().startswith("{"):
            inner = json_value(value) or _python_value(value)
            if isinstance(inner, dict):
                opened |= flat_object(inner, f"{name}.")
                continue
        opened[name] = value
    return opened


def _python_value(text: str) -> Any:
    """Return what a text means as a Python literal, as tables of frames have it; None: nothing."""
    if len(text) > _MOST_LITERAL:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def list_names(names: Collection[str], wanted: Collection[str]) -> list[str]:
    """Return names such as `choices[].finish_reason` whose list is a column of a source."""
    return [name for name in wanted if "[]" in name and name.partition("[]")[0] in names]


def cell_of(row: Mapping[str, Any], name: str) -> Any:
    """Return a cell: `a[]` is the number of a list's elements, `a[].b` what they have as `b`."""
    base, is_list, rest = name.partition("[]")
    if not is_list:
        return row.get(name)
    items = row.get(base)
    if not isinstance(items, list):
        return None
    if not rest:
        return len(items)
    objects = [flat_object(item) for item in items if isinstance(item, dict)]
    return [item.get(rest.removeprefix(".")) for item in objects]


def has_lines(source: Path, test: RequestTest) -> bool:
    """Return whether a log of JSON has a request a line: then its lines are read as they are."""
    first = next(read_text_blocks(source), b"").decode(errors="replace")
    lines = [line for line in first.split("\n", 200) if line.strip()][:100]
    if not lines or lines[0].lstrip().startswith("["):
        return not lines
    objects = [value for value in map(json_value, lines) if isinstance(value, dict)]
    if not any(isinstance(json_value(line), dict) for line in lines[:2]):
        return False
    return any(map(test.has_tokens, objects)) or not any(
        row is not value for value in objects for row in _requests_in(value, test, set()).rows
    )


def request_blocks(
    source: Path, test: RequestTest, outer_names: Collection[str]
) -> Iterator[bytes]:
    """Yield the requests of JSON documents as JSON lines, in blocks.

    `outer_names` are fields of the objects around a request that it takes along. Raises
    InputError: the text is no JSON, or a value is too long.
    """
    lines: list[bytes] = []
    size = 0
    outer = set(outer_names)
    for value in json_values(source):
        rows = _requests_in(value, test, outer).rows or [value]  # else rejected with its reason
        for row in rows:
            line = json.dumps(row).encode() + b"\n"
            lines.append(line)
            size += len(line)
            if size >= BLOCK_BYTES:
                yield b"".join(lines)
                lines = []
                size = 0
    if lines:
        yield b"".join(lines)


def first_rows(source: Path, test: RequestTest, most: int) -> list[dict[str, Any]]:
    """Return the first objects of a source that are requests, or else its first objects."""
    rows: list[dict[str, Any]] = []
    for value in json_values(source):
        rows += _requests_in(value, test, set()).rows or [value]
        if len(rows) >= most:
            break
    return [row for row in rows[:most] if isinstance(row, dict)]


class _Requests(NamedTuple):
    rows: list[dict[str, Any]]
    has_tokens: bool


def _requests_in(
    value: Any,
    test: RequestTest,
    outer: set[str],
    carried: Mapping[str, Any] | None = None,
    depth: int = 0,
) -> _Requests:
    """Return the requests in a JSON value: the value itself, or the objects of its lists."""
    around = dict(carried or {})
    if depth > _MOST_DEPTH or not isinstance(value, list | dict):
        return _Requests([], False)
    if isinstance(value, list):
        parts = [_requests_in(item, test, outer, around, depth + 1) for item in value]
        return _Requests(
            [row for part in parts for row in part.rows], any(part.has_tokens for part in parts)
        )

    plain = _plain(value)
    if not isinstance(plain, dict):
        return _Requests([], False)
    if test.has_tokens(plain):
        return _Requests([around | plain], True)

    around |= {name: plain[name] for name in outer if isinstance(plain.get(name), dict)}
    held = [item for item in value.values() if isinstance(item, list | dict)]
    inner = _requests_in(held, test, outer, around, depth + 1)
    if inner.has_tokens or not test.has_time(plain):
        return inner
    return _Requests([around | plain], False)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with lists of keys and values as objects, as OTLP writes attributes."""
    if depth > _MOST_DEPTH or not isinstance(value, list | dict):
        return value
    if isinstance(value, list):
        if value and all(isinstance(one, dict) and {*one} == {"key", "value"} for one in value):
            return {str(one["key"]): _plain(one["value"], depth + 1) for one in value}
        return [_plain(item, depth + 1) for item in value]
    if len(value) == 1:
        (kind, content) = next(iter(value.items()))
        if kind in _ANY_VALUE:
            return content
        if kind == "arrayValue" and isinstance(content, dict):
            return _plain(content.get("values", []), depth + 1)
    return {name: _plain(item, depth + 1) for name, item in value.items()}


def json_values(source: Path) -> Iterator[Any]:
    """Yield the JSON values of a file, one after another; of an array its elements.

    Raises InputError: text that is no JSON, or a value that is too long.
    """
    decoder = json.JSONDecoder()
    text = ""
    n_tried = 0  # letters with which a value was not whole
    n_values = 0
    marks = ""
    is_closed = True
    for piece in chain(_texts(source), [""]):
        text += piece
        at = 0
        while len(text) - at >= 2 * n_tried or not piece:
            begin = at
            at = _skipped(text, at, marks)
            is_closed |= "]" in text[begin:at]
            if not n_values and not marks and text[at : at + 1] == "[":
                marks = ",]"
                is_closed = False
                at += 1
                continue
            if at >= len(text):
                break
            try:
                value, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                n_tried = len(text) - at
                if not piece or n_tried > MAX_DOCUMENT_BYTES:
                    raise _no_json(source, n_values, n_tried) from None
                break
            n_tried = 0
            n_values += 1
            yield value
        text = text[at:]
    if not is_closed:
        raise _no_json(source, n_values, 0)


def _no_json(source: Path, n_values: int, n_letters: int) -> InputError:
    if n_letters > MAX_DOCUMENT_BYTES:
        fix = "write its requests as JSON lines, e.g. `jq -c '.data[]' OLD > NEW`"
        return InputError(
            f"a JSON value above {MAX_DOCUMENT_BYTES >> 20} MiB", file=source, fix=fix
        )
    where = f"after {n_values:,} JSON values" if n_values else "at its start"
    fix = "give the file whole: JSON lines, an array, or an object that holds a list of requests"
    return InputError(f"{where} no JSON follows, or it is cut short", file=source, fix=fix)


def _skipped(text: str, at: int, marks: str) -> int:
    while at < len(text) and (text[at].isspace() or text[at] in marks):
        at += 1
    return at


def _texts(source: Path) -> Iterator[str]:
    """Yield the text of a file in pieces, which may end within a line."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with pa.input_stream(source, compression="detect") as stream:
        while chunk := stream.read(BLOCK_BYTES):
            if piece := decoder.decode(chunk):
                yield piece
        if rest := decoder.decode(b"", final=True):
            yield rest

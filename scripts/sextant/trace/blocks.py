"""A text source as blocks of whole lines: decompressed, in order, never all in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from sextant.base.errors import InputError

BLOCK_BYTES = 4 << 20
"""Text that is checked at a time. It bounds the memory, and sets the trace's row groups."""
MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"

Item = TypeVar("Item")
Result = TypeVar("Result")


def read_blocks(source: Path) -> Iterator[bytes]:
    """Yield the text of a file (`.gz` and `.zst` too), cut at ends of lines, without its BOM.

    Each block ends in a newline, the last one too. Raises InputError if a line is longer than
    `MAX_LINE_BYTES`, OSError if the file is cut short or not what its ending says.
    """
    with pa.input_stream(source, compression="detect") as stream:
        block = rest = b""
        is_start = True
        while chunk := stream.read(BLOCK_BYTES):
            if is_start:
                chunk, is_start = chunk.removeprefix(_BOM), False
            end = chunk.rfind(b"\n") + 1
            if end:
                if block:
                    yield block
                block, rest = b"".join([rest, memoryview(chunk)[:end]]), chunk[end:]
            else:
                rest += chunk
            if len(rest) > MAX_LINE_BYTES:
                problem = f"a line is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise InputError(problem, file=source, fix="end each row's line")
        if rest:
            block += rest + b"\n"
        if block:
            yield block


def fetched(pool: Executor, items: Iterator[Item]) -> Iterator[Item]:
    """Yield `items`, each fetched on another thread while the one before is worked on."""
    future = pool.submit(next, items, None)
    while (item := future.result()) is not None:
        future = pool.submit(next, items, None)
        yield item


def ahead(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], n_ahead: int
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with `function` of it, in order; up to `n_ahead` are worked on at once."""
    waiting: deque = deque()
    for item in items:
        waiting.append((item, pool.submit(function, item)))
        if len(waiting) > n_ahead:
            first, future = waiting.popleft()
            yield first, future.result()
    for item, future in waiting:
        yield item, future.result()

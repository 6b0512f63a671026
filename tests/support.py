"""Paths, waiting and small files that many tests need."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pandas as pd
import pyarrow as pa
import pytest

from sextant.base.files import write_parquet

ROOT = Path(__file__).parents[1]
needs_baselines = pytest.mark.skipif(
    not all(map(find_spec, ("jax", "keras", "surprise"))),
    reason="the extra `baselines` is not installed (make baselines)",
)
FAKE_PYTHON = ROOT / "tests" / "fake_engine" / "python"
"""Interpreter whose vLLM is a fake that answers in a second."""
PATIENCE_S = 300.0
"""Longest wait of a test for something that has to happen; only a failure takes that long."""
Found = TypeVar("Found")


def script(path: str) -> ModuleType:
    """Import a script that belongs to no package, by its path in the repository."""
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where its classes are looked up
    spec.loader.exec_module(module)
    return module


def wait_for(
    look: Callable[[], Found], what: str, *, timeout_s: float = PATIENCE_S, period_s: float = 0.02
) -> Found:
    """Return what `look` finds as soon as it finds anything."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: after {timeout_s} s"
        time.sleep(period_s)
    return found


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fail a block that takes longer, e.g. because it waits for the other end of a pipe."""

    def fail(*_: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write_trace(folder: Path, frame: pd.DataFrame, start_time: str | None = None) -> Path:
    """Write a trace. By default each request is ok, has one token on each side, and no LLM."""
    defaults = {"llm": None, "service": None, "status": "ok", "input_tokens": 1, "output_tokens": 1}
    frame = frame.assign(**{name: value for name, value in defaults.items() if name not in frame})
    schema = pa.schema(
        [
            ("arrival_s", pa.float64()),
            *((name, pa.string()) for name in ("llm", "service", "status")),
            *((name, pa.int32()) for name in ("input_tokens", "output_tokens")),
        ]
    )
    path = folder / "trace.parquet"
    table = pa.Table.from_pandas(frame[schema.names], schema, preserve_index=False)
    write_parquet(path, table, {"start_time": start_time})
    return path

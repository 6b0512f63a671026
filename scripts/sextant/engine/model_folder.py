"""A folder with nothing but an LLM's `config.json`, for servers with random weights."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def model_folder(config_path: Path, scratch: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder with the LLM's `config.json`, for servers with random weights."""
    with tempfile.TemporaryDirectory(prefix="sextant-model-", dir=scratch) as folder:
        shutil.copy(config_path, Path(folder) / "config.json")
        yield Path(folder)

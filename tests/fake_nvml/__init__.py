"""An NVML of our own, built from `nvml.c`, for processes that a test starts."""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml.c")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    folder = tempfile.TemporaryDirectory(prefix="sextant-nvml-")
    library = Path(folder.name) / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return folder


def put_first(monkeypatch: pytest.MonkeyPatch, folder: str | Path) -> None:
    """Let processes that are started from now on look for libraries in `folder` first."""
    rest = os.environ.get("LD_LIBRARY_PATH")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}:{rest}" if rest else str(folder))


def use_fake_nvml(monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
    """Give such processes our NVML; `settings` are those of `nvml.c`, in small letters."""
    put_first(monkeypatch, _folder().name)
    for name, value in settings.items():
        monkeypatch.setenv(f"FAKE_NVML_{name.upper()}", str(value))


def use_no_nvml(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Give such processes an NVML that cannot be loaded."""
    (folder / "libnvidia-ml.so.1").write_text("not a library")
    put_first(monkeypatch, folder)

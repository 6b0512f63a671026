"""What is kept in the cache is what was put there, or it is computed again."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from sextant.base.kept import keep_arrays, kept_path, read_arrays

ARRAYS = {"mean": np.arange(5.0), "names": np.array(["a", "b"])}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = kept_path("fit", "a", b"b")
    keep_arrays(path, ARRAYS)
    return path


def other_numbers(path: Path) -> None:
    np.savez(path, **ARRAYS | {"mean": ARRAYS["mean"] + 0.3})


def of_another_name(path: Path) -> None:
    other = kept_path("fit", "another")
    keep_arrays(other, ARRAYS | {"mean": ARRAYS["mean"] + 0.3})
    shutil.copy(other, path)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def encrypted(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the first header of the archive
    path.write_bytes(content)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "a byte": lambda path: path.write_bytes(path.read_bytes().replace(b"mean", b"meen")),
    "numbers": other_numbers,
    "another name": of_another_name,
    "encrypted": encrypted,
    "text": lambda path: path.write_text("no archive"),
    "fifo": fifo,
    "folder": folder,
}


def test_arrays_come_back(path: Path) -> None:
    kept = read_arrays(path)
    assert kept is not None and kept.keys() == ARRAYS.keys()
    assert all((kept[name] == values).all() for name, values in ARRAYS.items())


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_said_once_and_mended(path: Path, damage, caplog) -> None:
    damage(path)
    assert read_arrays(path) is None
    assert caplog.messages == [f"{path} is damaged: what it held is computed again"]
    if path.is_dir():
        path.rmdir()
    keep_arrays(path, ARRAYS)
    assert read_arrays(path) is not None and len(caplog.messages) == 1

"""What tests share: the mirror, a small experiment, and a fake engine."""

import os
from pathlib import Path

import pytest

from support import ROOT


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of mirrored public data; tests that need it are skipped where it is absent."""
    folder = os.environ.get("SEXTANT_MIRROR")
    if not folder:
        pytest.skip("needs the mirror: SEXTANT_MIRROR is not set")
    return Path(folder)


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in the repository's root, from which the configuration's paths count."""
    monkeypatch.chdir(ROOT)
    return ROOT

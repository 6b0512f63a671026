"""The experiments of benchmarks/ are run by hand; what they import from here has to exist."""

import runpy
from pathlib import Path

import pytest

from support import ROOT


@pytest.mark.parametrize(
    "script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda it: it.stem
)
def test_an_experiment_finds_what_it_imports(script: Path) -> None:
    told = runpy.run_path(str(script), run_name="benchmark")["__doc__"]
    assert f"benchmarks/{script.name}" in told  # the command

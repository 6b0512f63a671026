"""The experiments of benchmarks/ are run by hand; what they import from here has to exist."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

from support import ROOT


@pytest.mark.parametrize(
    "script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda it: it.stem
)
def test_an_experiment_finds_what_it_imports(script: Path) -> None:
    told = runpy.run_path(str(script), run_name="benchmark")["__doc__"]
    assert f"benchmarks/{script.name}" in told  # the command


def test_layouts_that_measured_alike_have_no_better_one() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "disaggregated.py"), run_name="benchmark")
    load = {name: 1 for name in script["LOAD"]}
    rows = [(8, 2.0, 2.0), (8, 1.0, 1.5), (16, 4.02, 3.0)]
    names = ["gpus", "requests/s", "predicted requests/s"]
    table = pd.DataFrame([load | dict(zip(names, row, strict=True)) for row in rows])
    # The first beats the second, and by 0.5% not the third, which beats the second too.
    assert script["layouts_named_right"](table) == (1, 3)
    assert script["layouts_named_right"](table, 0.01) == (1, 2)

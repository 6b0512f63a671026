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


DISAGGREGATED = str(ROOT / "benchmarks" / "disaggregated.py")


def test_decode_workers_have_the_slots_of_their_recipe() -> None:
    script = runpy.run_path(DISAGGREGATED, run_name="benchmark")
    names = ["config_id", "isl", "osl", "concurrency"]
    # The first two ran recipes with 8 slots and with 1, the third none that is known.
    rows = [(494.0, 1024, 1024, 30.0), (494.0, 8192, 1024, 6.0), (229.0, 8192, 1024, 6.0)]
    settings = script["decode_settings"](pd.DataFrame(rows, columns=names))
    assert [it.max_num_seqs for it in settings] == [8, 1, None]


def test_layouts_that_measured_alike_have_no_better_one() -> None:
    script = runpy.run_path(DISAGGREGATED, run_name="benchmark")
    load = {name: 1 for name in script["LOAD"]}
    rows = [(8, 2.0, 2.0), (8, 1.0, 1.5), (16, 4.02, 3.0)]
    names = ["gpus", "requests/s", "predicted requests/s"]
    table = pd.DataFrame([load | dict(zip(names, row, strict=True)) for row in rows])
    # The first beats the second, and by 0.5% not the third, which beats the second too.
    assert script["layouts_named_right"](table) == (1, 3)
    assert script["layouts_named_right"](table, 0.01) == (1, 2)

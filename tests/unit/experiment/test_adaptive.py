"""Adaptive rows of benchmarks.tsv, and the cells that were chosen of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.base.sheets import Row, read_configuration
from sextant.experiment.experiment import (
    AdaptiveCells,
    add_chosen,
    cell_definition,
    check_adaptive,
    chosen_cells,
    chosen_path,
)
from sextant.experiment.loading import load_experiment
from sextant.experiment.sheets import CellKey
from support import ROOT

DECISION = {"workload_id": "w", "scenario_id": "s"}
CELLS = [CellKey(llm_id, "1xa", "w", "s") for llm_id in ("a", "b")]


def config(folder: Path) -> dict:
    return {"pathvars": {"results": str(folder)}, "source": "measured"}


def test_rounds_are_added_and_read_again(tmp_path: Path) -> None:
    path = chosen_path(config(tmp_path))
    assert add_chosen(path, {CELLS[1]: (3, 48)}, is_new=True) == 1
    assert add_chosen(path, {CELLS[0]: (1,)}, is_new=True) == 2
    assert chosen_cells(config(tmp_path), CELLS) == {CELLS[1]: (3, 48), CELLS[0]: (1,)}
    # A cell that no adaptive row has any more is not measured again, nor forgotten.
    assert chosen_cells(config(tmp_path), CELLS[:1]) == {CELLS[0]: (1,)}


@pytest.mark.parametrize("levels", ["4,2", "2,2", "0,1", "1.5", ""])
def test_a_damaged_sheet_is_named(tmp_path: Path, levels: str) -> None:
    path = chosen_path(config(tmp_path))
    add_chosen(path, {CELLS[0]: (1, 2)}, is_new=True)
    path.write_text(path.read_text().replace("1,2", levels))
    with pytest.raises(InputError, match=r"measured\.tsv.*levels"):
        chosen_cells(config(tmp_path), CELLS)


@pytest.mark.parametrize("wrong", ["workload_id", "scenario_id", "study"])
def test_a_row_that_no_answer_rests_on_cannot_be_adaptive(wrong: str) -> None:
    row = Row(DECISION | {"choose": "adaptive", wrong: "burst"}, 7, "benchmarks.tsv")
    with pytest.raises(InputError, match=f"benchmarks.tsv.*{wrong}"):
        check_adaptive([row], DECISION)


def test_a_chosen_cell_is_defined_by_its_own_levels(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    given = read_configuration(ROOT)
    experiment = load_experiment(given)
    key = experiment.cells[0]
    with_levels = replace(experiment, adaptive=AdaptiveCells(chosen={key: (3, 48)}))
    whole = cell_definition(experiment, key, given)
    chosen = cell_definition(with_levels, key, given)
    assert chosen["scenario"].pop("levels") == [3, 48]
    assert whole["scenario"].pop("levels") == [1, 2, 4, 8]
    assert chosen == whole

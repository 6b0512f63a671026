"""What an experiment says of its files."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sextant.base.errors import InputError
from sextant.base.sheets import Row
from sextant.experiment import loading
from sextant.experiment.experiment import AdaptiveCells, cell_definition, trace_sha256
from sextant.experiment.loading import load_experiment
from sextant.experiment.scenarios import OpenLoop
from sextant.experiment.sheets import CellKey

EXPERIMENT = SimpleNamespace(traces={"ours": {"dataset": "ours.csv"}}, datasets={})


def test_the_checksum_of_a_local_trace_is_that_of_its_present_content(tmp_path, monkeypatch):
    for content in (b"one", b"two!", b"two?"):
        for folder in (tmp_path, tmp_path / "elsewhere"):
            folder.mkdir(exist_ok=True)
            monkeypatch.chdir(folder)
            said = content + folder.name.encode()
            (folder / "ours.csv").write_bytes(said)
            os.utime("ours.csv", ns=(0, content[-1]))
            assert trace_sha256(EXPERIMENT, "ours") == hashlib.sha256(said).hexdigest()


def test_a_cell_depends_on_what_a_mapping_file_says_not_on_its_name(config):
    sheet, mapping = Path("config/traces.tsv"), Path("own.yaml")
    row = ("azure-2023-conv-sample", "resources/traces/azure-2023-conv-sample.csv", "columns")
    sheet.write_text(f"trace_id\tdataset\tformat\tcolumns\n{chr(9).join(row)}\town.yaml\n")
    said = "columns: {arrival: arrival_s, input_tokens: input_tokens, output_tokens: output_tokens}"
    definitions = []
    for unit in ("s", "ms"):
        mapping.write_text(f"{said}\ntime_unit: {unit}\n")
        experiment = load_experiment(config)
        key = next(cell for cell in experiment.cells if cell.workload_id == "conversation")
        definitions.append(cell_definition(experiment, key, config))
    assert definitions[0] != definitions[1]
    mapping.write_text("columns: {arrival: a}")
    with pytest.raises(InputError, match=r"own\.yaml, field 'columns': input_tokens is missing"):
        load_experiment(config)


def test_a_folder_of_results_is_set_below_pathvars(config):
    told = r"field 'results'.*Fix: set it below pathvars.*pathvars: \{results: /x\}"
    with pytest.raises(InputError, match=told):
        load_experiment(config | {"results": "/x"})


def test_a_scenario_that_asks_for_arrivals_needs_a_workload_with_a_trace():
    asked = OpenLoop(levels=(2.0,), duration_s=9.0, arrivals="fitted")
    sheet = "workloads.tsv"
    caps = {"max_input_tokens": 8, "max_output_tokens": 8}
    rows = {"talk": Row({"trace_id": "t", **caps}, 2, sheet)}
    rows["short"] = Row({"use_case": "summarization", **caps}, 3, sheet)
    cells = [CellKey("llm", "gpu", name, "bursts") for name in rows]
    given: dict = {"scenarios": {"bursts": asked}, "workloads": rows, "adaptive": AdaptiveCells()}
    given["llm_facts"] = {"llm": SimpleNamespace(context_tokens=16)}
    loading._check_cells(SimpleNamespace(cells=cells[:1], **given))
    told = r"workloads\.tsv, line 3, field 'trace_id'.*'bursts' asks"
    with pytest.raises(InputError, match=told):
        loading._check_cells(SimpleNamespace(cells=cells, **given))

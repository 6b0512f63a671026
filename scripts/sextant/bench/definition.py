"""What a cell is: all that its measurement depends on; and which levels of it are finished."""

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.files import read_json, write_json, write_parquet
from sextant.experiment.experiment import definition_sha256, inputs_sha256
from sextant.experiment.scenarios import Scenario, level_to_json, scenario_of
from sextant.experiment.servers import Variant
from sextant.facts.gpu import Devices
from sextant.points.cell_files import concatenated, file_facts, from_json, to_json
from sextant.points.run import LevelRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cell:
    """An LLM × GPU profile × workload × scenario, with all that its measurement depends on."""

    source: str
    llm_id: str
    config_path: Path
    model: str | None
    """Folder of the weights; None for random weights from the config alone."""
    gpu_profile_id: str
    devices: Devices
    workload_id: str
    workload_path: Path
    max_input_tokens: int
    max_output_tokens: int
    scenario_id: str
    scenario: Scenario
    seed: int
    definition: Mapping[str, Any]
    """What the cell was built from, plain data; see `cell_definition`."""
    definition_sha256: str
    """Of `definition` and of the content of the workload and the LLM's config."""
    variant: Variant
    sampler: str = "joint"
    """How requests are drawn from the workload; see `RequestModel.sample`."""
    prompts: str | None = None
    """File that prompts are cut from; None for random token ids."""

    @property
    def longest_request_tokens(self) -> int:
        """Input and output tokens of the workload's longest request."""
        return self.max_input_tokens + self.max_output_tokens


def cell_from_definition(definition: Mapping[str, Any], workload_path: str | Path) -> Cell:
    """Build a cell from its definition (see `sextant.experiment.experiment.cell_definition`)."""
    names = [field.name for field in fields(Cell)]
    contents = inputs_sha256(definition, workload_path, definition["config_path"])
    values = {name: definition[name] for name in names if name in definition} | {
        "config_path": Path(definition["config_path"]),
        "devices": Devices(**definition["devices"]),
        "scenario": scenario_of(definition["scenario"]),
        "variant": Variant(**definition.get("variant", {})),
        "definition": definition,
        "definition_sha256": definition_sha256(definition, *contents),
        "workload_path": Path(workload_path),
    }
    return Cell(**values)


class Checkpoint:
    """The finished levels of a cell; those of another definition or machine are not taken over."""

    def __init__(self, folder: Path, definition_sha256: str, hardware: str) -> None:
        """Keep the levels in `folder` that are whole and of this definition and hardware."""
        self.folder = folder
        self._key = {"definition_sha256": definition_sha256, "hardware": hardware}
        folder.mkdir(parents=True, exist_ok=True)
        for level in sorted(folder.glob("level-*")):
            if problem := self._problem(level):
                log.warning("%s: %s; it is measured again", level, problem)
                shutil.rmtree(level)

    def _problem(self, level: Path) -> str | None:
        if not (level / "level.json").exists():
            return "it was not finished"
        try:
            entry = read_json(level / "level.json")
            if entry["key"]["definition_sha256"] != self._key["definition_sha256"]:
                return "it was measured by another definition"
            if (machine := entry["key"]["hardware"]) != self._key["hardware"]:
                return f"it was measured on {machine}"
            from_json(LevelRun, entry["level"])
            tables = [level / name for name in entry["files"]]
            return None if file_facts(tables) == entry["files"] else "its files are damaged"
        except (OSError, ValueError, TypeError, KeyError):
            return "its files are damaged"

    def save(
        self, level: LevelRun, batch_weight_tokens: int | None, tables: dict[str, pa.Table]
    ) -> None:
        """Keep a finished level; `level.json`, which declares it whole, comes last."""
        folder = self._folder_of(level)
        paths = {folder / f"{name}.parquet": table for name, table in tables.items()}
        for path, table in paths.items():
            write_parquet(path, table, {})
        entry = {"batch_weight_tokens": batch_weight_tokens, "level": to_json(level)}
        write_json(folder / "level.json", {"key": self._key, "files": file_facts(paths)} | entry)

    def levels(self, batch_weight_tokens: int | None) -> list[LevelRun]:
        """Return the levels that were measured at this batch weight, in order."""
        found = []
        for level in self.folder.glob("level-*"):
            entry = None if self._problem(level) else read_json(level / "level.json")
            if entry and entry["batch_weight_tokens"] == batch_weight_tokens:
                found.append(from_json(LevelRun, entry["level"]))
        return sorted(found, key=lambda run: run.level)

    def table(self, name: str, levels: Sequence[LevelRun]) -> pa.Table:
        """Return the rows of a table (`TABLES`), of these levels."""
        files = [self._folder_of(level) / f"{name}.parquet" for level in levels]
        return concatenated(name, [pq.read_table(file) for file in files])

    def _folder_of(self, level: LevelRun) -> Path:
        return self.folder / f"level-{level_to_json(level.level)}"

    def forget_levels(self) -> None:
        """Drop all levels: their batch weight did not hold."""
        for folder in self.folder.glob("level-*"):
            shutil.rmtree(folder)

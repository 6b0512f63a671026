"""What a measurement has come to so far, kept until it is whole.

A job that is killed, times out or loses its server starts again; Snakemake deletes the outputs of
the first attempt, but not this folder beside them.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.files import read_json, write_json, write_parquet
from sextant.experiment.scenarios import level_to_json
from sextant.points.cell_files import concatenated, file_facts, from_json, to_json
from sextant.points.run import LevelRun

log = logging.getLogger(__name__)


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
            differing = [name for name in self._key if entry["key"][name] != self._key[name]]
            if differing == ["hardware"]:
                return f"it was measured on {entry['key']['hardware']}"
            if differing:
                return "it was measured by another definition"
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
        paths = [folder / f"{name}.parquet" for name in tables]
        for path, table in zip(paths, tables.values(), strict=True):
            write_parquet(path, table, {})
        entry = {"batch_weight_tokens": batch_weight_tokens, "level": to_json(level)}
        write_json(folder / "level.json", {"key": self._key, "files": file_facts(paths)} | entry)

    def levels(self, batch_weight_tokens: int | None) -> list[LevelRun]:
        """Return the levels that were measured at this batch weight, in order."""
        whole = [level for level in self.folder.glob("level-*") if not self._problem(level)]
        entries = [read_json(level / "level.json") for level in whole]
        found = [
            from_json(LevelRun, entry["level"])
            for entry in entries
            if entry["batch_weight_tokens"] == batch_weight_tokens
        ]
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

"""What a measurement has come to so far, kept until it is whole.

A job that is killed, times out or loses its server starts again; Snakemake deletes the
outputs of the first attempt, but not this folder beside them. Levels that were finished
are not measured twice.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.errors import InputError
from sextant.files import read_json, write_json, write_parquet


class Checkpoint:
    """The finished levels of a cell at one batch weight; another definition starts afresh."""

    def __init__(self, folder: Path, definition_sha256: str) -> None:
        self.folder = folder
        self._key = {"definition_sha256": definition_sha256}
        if _read(folder / "key.json") != self._key:
            self.remove()
            folder.mkdir(parents=True)
            write_json(folder / "key.json", self._key)

    def save(self, level: dict, batch_weight_tokens: int, tables: dict[str, pa.Table]) -> None:
        """Keep a finished level; `level.json`, which vouches for the tables, comes last."""
        folder = self.folder / f"level-{level['level']}"
        for name, table in tables.items():
            write_parquet(folder / f"{name}.parquet", table, {})
        entry = {"batch_weight_tokens": batch_weight_tokens, "level": level}
        write_json(folder / "level.json", entry)

    def levels(self, batch_weight_tokens: int) -> list[dict]:
        """Return the entries of the levels that were measured at this batch weight, in order."""
        entries = [_read(path) for path in self.folder.glob("level-*/level.json")]
        entries = [entry for entry in entries if entry]
        found = [e["level"] for e in entries if e["batch_weight_tokens"] == batch_weight_tokens]
        return sorted(found, key=lambda level: float(level["level"]))

    def table(self, name: str, levels: list[dict], schema: pa.Schema) -> pa.Table:
        """Return the rows of a table, of these levels."""
        paths = [self.folder / f"level-{level['level']}" / f"{name}.parquet" for level in levels]
        tables = [pq.read_table(path).cast(schema) for path in paths]
        return pa.concat_tables([schema.empty_table(), *tables])

    def forget_levels(self) -> None:
        """Drop all levels: their batch weight did not hold."""
        for folder in self.folder.glob("level-*"):
            shutil.rmtree(folder)

    def remove(self) -> None:
        """Drop everything, once the results are whole."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> dict | None:
    """Return what a file says; None if it is not there or was damaged."""
    try:
        return read_json(path)
    except (OSError, InputError):
        return None

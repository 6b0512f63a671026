"""The characterizations that ship with the project, each a folder of data."""

from functools import cache
from pathlib import Path

from sextant.base.sheets import SCHEMAS
from sextant.points.characterizations.characterization import Characterization
from sextant.points.characterizations.description import FILE, Description, load_description
from sextant.points.characterizations.folder import load_folder

ROOT = SCHEMAS.parents[1]
SHIPPED = ROOT / "resources" / "characterizations"
DEFAULT_NAME = "llm-pilot"
DEFAULT_SOURCES = ("archive:inferencex", f"archive:{DEFAULT_NAME}")
"""What answers rest on where nothing else is named."""


@cache
def shipped_sources() -> dict[str, Path]:
    """Return the folder of each characterization that ships, by its source."""
    folders = sorted(path.parent for path in SHIPPED.glob(f"*/{FILE}"))
    return {load_description(folder).source: folder for folder in folders}


def shipped_description(source: str) -> Description | None:
    """Return what is said of a characterization that ships, None if none has this name."""
    folder = shipped_sources().get(source)
    return load_description(folder) if folder else None


def load_shipped(name: str = DEFAULT_NAME) -> Characterization:
    """Read a characterization that ships, by the name of its folder.

    Raises:
        InputError: one of its files was altered so that it makes no sense.
    """
    return load_folder(SHIPPED / name)

"""The characterizations that ship with the project, each a folder of data."""

from functools import cache
from pathlib import Path

from sextant.base.sheets import SCHEMAS
from sextant.characterizations.characterization import Characterization, load_characterization
from sextant.characterizations.description import FILE, Description, load_description
from sextant.characterizations.folder import load_folder
from sextant.characterizations.write import write_points

ROOT = SCHEMAS.parents[1]
SHIPPED = ROOT / "resources" / "characterizations"
DEFAULT_NAME = "llm-pilot"
DEFAULT_SOURCES = (f"archive:{DEFAULT_NAME}",)
"""What answers rest on where nothing else is named."""


def export_points(database: str | Path, source: str | None, out: Path) -> int:
    """Write the points of a store as the table of a folder; return their number."""
    points = load_characterization(database, source).points
    # A store has no TPOT: what stands there was filled in from ITL.
    write_points(out, points.drop(columns=["mean_tpot_ms", "median_tpot_ms"]))
    return len(points)


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

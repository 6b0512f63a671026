"""Configuration files, merged as Snakemake merges them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sextant.base.errors import InputError

DEFAULT_FILE = "config/config.yaml"
"""The one that the Snakefile names; others are given on top of it."""


def read_configuration(folder: Path, config_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Read the Snakefile's configuration in a folder, and those on top of it, the last wins.

    Raises:
        InputError: a file is missing or no YAML.
    """
    return merged(read_file(folder / file) for file in [DEFAULT_FILE, *config_files])


def read_file(path: Path) -> dict[str, Any]:
    """Read one file of a configuration."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        fix = "correct its path"
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        problem = f"no YAML ({' '.join(str(error).split())})"
        raise InputError(problem, file=path, fix="correct the file") from None


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge configurations key by key, also below keys; later ones win."""
    config: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = config.get(key)
            is_both = isinstance(value, Mapping) and isinstance(before, Mapping)
            config[key] = merged([before, value]) if is_both else value
    return config

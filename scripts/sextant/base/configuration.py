"""Configuration files, merged as Snakemake merges them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.base.yaml_files import read_yaml

DEFAULT_FILE = "config/config.yaml"
"""The file that the Snakefile names; others are merged into it."""


def read_configuration(folder: Path, config_files: Sequence[Path] = ()) -> dict[str, Any]:
    """Read the Snakefile's configuration in a folder and merge others into it; the last wins.

    Raises:
        InputError: a file is missing or not YAML.
    """
    return merged(read_yaml(folder / file) for file in [Path(DEFAULT_FILE), *config_files])


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge configurations key by key, also below keys; later ones win."""
    config: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            before = config.get(key)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                value = merged([before, value])
            config[key] = value
    return config

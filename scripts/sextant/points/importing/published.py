"""What importers of published characterizations share: ids, the folder, and the counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.gpu import profile_of_id, profile_row
from sextant.facts.prices import priced
from sextant.points.characterizations.description import Description
from sextant.points.characterizations.write import write_description, write_points, write_tables

_PROVIDER = "aws"
"""Whose prices GPU profiles get: the publishers state none."""


@dataclass(frozen=True)
class Imported:
    """What became of the published measurements."""

    n_read: int
    n_points: int
    left_out: Mapping[str, int]
    """Measurements of LLMs whose `config.json` is not at hand, by the published name."""
    n_exact_repeats: int = 0
    """Rows alike in all but their id."""
    n_listed_again: int = 0
    """Measurements that a second export lists, with the same latencies to the last digit."""
    n_without_load: int = 0
    """Measurements of which neither users nor a rate is known: all was sent at once."""

    def __str__(self) -> str:
        """Return the counts for a person."""
        parts = [f"{self.n_points:,} points of {self.n_read:,} measurements"]
        parts += [f"{self.n_exact_repeats} exact repeats"] * (self.n_exact_repeats > 0)
        parts += [f"{self.n_listed_again} listed again"] * (self.n_listed_again > 0)
        if self.n_without_load:
            parts.append(f"{self.n_without_load} left out, for neither users nor a rate are told")
        parts += [
            f"{n} left out of {name}, without a config.json" for name, n in self.left_out.items()
        ]
        return "; ".join(parts)


def llm_ids(names: pd.Series) -> pd.Series:
    """Return the ids of LLMs with these names on Hugging Face: `/` becomes `__`."""
    return names.str.replace("/", "__", regex=False)


def has_config(ids: pd.Series, names: pd.Series, out: Path, configs: str) -> pd.Series:
    """Tell which LLMs have their `<llm_id>.json` in a folder relative to `out`.

    Raises:
        InputError: none has; names the first one by its published name.
    """
    folder = (out / configs).resolve()  # `out` need not be there yet
    found = ids.map(lambda name: (folder / f"{name}.json").is_file()).astype(bool)
    if not found.any():
        fix = f"save it as {ids.iloc[0]}.json there, or give another folder (--configs)"
        raise InputError(f"no config.json of {names.iloc[0]}", file=folder, fix=fix)
    return found


def write_published(out: Path, about: Description, points: pd.DataFrame, configs: str) -> None:
    """Write the folder of a characterization whose GPU profiles are `<n>x<gpu_id>`.

    Args:
        out: the folder; other files in it stay.
        about: what its description says.
        points: some of the columns of points.
        configs: folder of the LLMs' `<llm_id>.json`, relative to `out`.
    """
    write_description(out, about)
    write_tables(out, _tables(points, configs))
    write_points(out / "points.csv", points)


def _tables(points: pd.DataFrame, configs: str) -> dict[str, list[dict[str, Any]]]:
    """Return `llms.tsv` and `gpu_profiles.tsv` for points whose profiles are `<n>x<gpu_id>`.

    Args:
        points: `llm_id, gpu_profile_id`.
        configs: folder of the LLMs' `<llm_id>.json`, relative to that of the points.
    """
    llms = [
        {"llm_id": name, "config": f"{configs}/{name}.json"}
        for name in sorted(points["llm_id"].unique())
    ]
    named = (name.split("x", 1) for name in points["gpu_profile_id"].unique())
    ordered = sorted((gpu_id, int(count)) for count, gpu_id in named)
    profiles = [profile_of_id(f"{n}x{gpu_id}") for gpu_id, n in ordered]
    return {
        "llms.tsv": llms,
        "gpu_profiles.tsv": [profile_row(priced(each, _PROVIDER) or each) for each in profiles],
    }

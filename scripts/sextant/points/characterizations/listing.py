"""What a characterization holds, in a few lines: how modern it is, and what it covers."""

import re
from typing import Any

import pandas as pd

from sextant.points.characterizations.characterization import Characterization


def summary(known: Characterization, place: str) -> dict[str, Any]:
    """Return what a characterization holds.

    Returns:
        `source`, `place`, `licences`, `n_points`, `llms`, `gpus` and `precisions` (lists),
        `engines` (versions by engine), and `[least, most]`, or None where that is not known, of
        `n_gpus`, `users`, `request_rate_rps` (of points without users), `input_tokens`,
        `output_tokens` and `measured_on`.
    """
    points = known.points
    profiles = [known.profiles[name] for name in points["gpu_profile_id"].unique()]
    ranges = ("users", "input_tokens", "output_tokens", "measured_on")
    return {
        "source": known.source,
        "place": place,
        "licences": [each.licence for each in known.descriptions],
        "n_points": len(points),
        "llms": _distinct(points["llm_id"]),
        "gpus": sorted({profile.gpu.gpu_id for profile in profiles}),
        "engines": {
            str(engine): sorted(rows["engine_version"].dropna().unique(), key=_version)
            for engine, rows in points.groupby("engine")
        },
        "precisions": _distinct(points["precision"]),
        "n_gpus": _range(pd.Series([profile.n_gpus for profile in profiles])),
        "request_rate_rps": _range(points.loc[points["users"].isna(), "request_rate_rps"]),
        **{name: _range(points[name]) for name in ranges},
    }


def _distinct(values: pd.Series) -> list[str]:
    return sorted(values.dropna().unique())


def _range(values: pd.Series) -> list[Any] | None:
    found = values.dropna()
    if found.empty:
        return None
    ends = [found.min(), found.max()]
    return ends if isinstance(ends[0], str) else [float(end) for end in ends]


def _version(text: str) -> tuple[bool, list[int], str]:
    """Return what sorts versions: numbers first, then names such as nightly-…."""
    return not text[:1].isdigit(), [int(part) for part in re.findall(r"\d+", text)], text


def as_text(row: dict[str, Any]) -> str:
    """Return a summary as lines for a person."""
    loads = [_span(row, "users", "users"), _span(row, "request_rate_rps", "requests per second")]
    lengths = [
        _span(row, "input_tokens", "input tokens"),
        _span(row, "output_tokens", "output tokens"),
    ]
    on = f"{_span(row, 'n_gpus', 'of')} {', '.join(row['gpus'])}"
    lines = [
        f"{row['source']} ({row['place']})",
        f"  {row['n_points']:,} points: {len(row['llms'])} LLMs on {on}",
        "  " + "; ".join(_engine(*each) for each in row["engines"].items()),
        "  precisions: " + (", ".join(row["precisions"]) or "as the LLMs' configurations say"),
        "  " + "; ".join(part for part in (*loads, *lengths) if part),
        f"  measured {_days(row['measured_on'])}; {', '.join(row['licences']) or 'your own'}",
        f"  LLMs: {', '.join(row['llms'])}",
    ]
    return "\n".join(line for line in lines if line.strip())


def _span(row: dict[str, Any], name: str, unit: str) -> str:
    if row[name] is None:
        return ""
    least, most = (f"{value:,.3g}" if value < 10 else f"{value:,.0f}" for value in row[name])
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _engine(name: str, versions: list[str]) -> str:
    if not versions:
        return f"{name}, version not known"
    numbered = [version for version in versions if version[0].isdigit()]
    ends = " to ".join(dict.fromkeys([*numbered[:1], *numbered[-1:]]))
    return " ".join([name, ", ".join(filter(None, [ends, *versions[len(numbered) :]]))])


def _days(days: list[str] | None) -> str:
    if days is None:
        return "at a time that is not known"
    return f"on {days[0]}" if days[0] == days[1] else f"{days[0]} to {days[1]}"

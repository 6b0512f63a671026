"""What changed between two stores, or two reports, and why: recommendation by recommendation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import Row, provenance, read_json
from sextant.pages.blocks import Document, Facts, Headline, Section
from sextant.pages.wording import listed, number, plural
from sextant.report.answers import deployment, recommendations
from sextant.report.store_tables import read_tables

_KEY = ("source", "slo_id", "llm_id", "predictor")
_PARTS = ("slos", "recommendations")


def compare_answers(first: Path, second: Path) -> Document:
    """Return which recommendations changed between two stores or reports.

    A change has the key (`source, slo_id, llm_id, predictor`), `was` and `is_now` in words, and
    `why`. Raises InputError for a file that is neither, and as `read_tables` does.
    """
    before, after = _read(first), _read(second)
    slos = [{slo["slo_id"]: slo for slo in found["slos"]} for found in (before, after)]
    a, b = (
        {tuple(row[name] for name in _KEY): row for row in found["recommendations"]}
        for found in (before, after)
    )
    changes = [
        dict(zip(_KEY, key, strict=True)) | _change(a[key], b[key], *(s[key[1]] for s in slos))
        for key in a
        if key in b and _answer(a[key]) != _answer(b[key])
    ]
    facts: dict[str, Any] = {
        "kind": "recommendations",
        "a": str(first),
        "b": str(second),
        "n_same": sum(_answer(a[key]) == _answer(b[key]) for key in a.keys() & b.keys()),
        "changes": changes,
        "only_in_a": [" ".join(key) for key in a if key not in b],
        "only_in_b": [" ".join(key) for key in b if key not in a],
    }
    lead = f"{plural(len(changes), 'recommendation')} changed, {facts['n_same']} as before"
    only = [
        Section(f"Only in {side.upper()}", [Facts(facts[f"only_in_{side}"])])
        for side in ("a", "b")
        if facts[f"only_in_{side}"]
    ]
    changed = [
        Section(
            f"{row['llm_id']}, {row['slo_id']} ({row['source']}, {row['predictor']})",
            [Headline(f"{row['was']} → {row['is_now']}"), Facts(row["why"])],
        )
        for row in changes
    ]
    return Document(
        "What changed",
        [Headline(lead), *changed, *only],
        facts,
        f"A: {first}; B: {second}",
        provenance(),
    )


def _read(path: Path) -> Mapping[str, Any]:
    if path.is_dir():
        names = ("sextant.duckdb", "recommendations.json")
        path = next((path / name for name in names if (path / name).exists()), path / names[0])
    if path.suffix == ".duckdb":
        tables = read_tables(path)
        return {"slos": tables["slo"], "recommendations": recommendations(tables)}
    found = read_json(path)
    if not isinstance(found, dict) or any(part not in found for part in _PARTS):
        fix = "give a store (.duckdb), a report (its recommendations.json), or load runs"
        raise InputError("is not a report", file=path, fix=fix)
    return found


def _answer(row: Row) -> tuple:
    return row["gpu_profile_id"], row["replicas"], row["usd_per_hour"]


def _change(was: Row, now: Row, slo_before: Row, slo_after: Row) -> Row:
    why = [
        f"the SLO's {name} was {_words_of(slo_before.get(name))}, "
        f"is {_words_of(slo_after.get(name))}"
        for name in sorted(slo_before.keys() | slo_after.keys())
        if slo_before.get(name) != slo_after.get(name)
    ]
    if was["gpu_profile_id"] is not None:
        why.append(_of_profile(was, was, now, "A's choice", "B"))
    if now["gpu_profile_id"] not in (None, was["gpu_profile_id"]):
        why.append(_of_profile(now, now, was, "B's choice", "A"))
    return {"was": _words(was), "is_now": _words(now), "why": why}


def _words_of(value: Any) -> str:
    return number(value) if isinstance(value, int | float) else str(value or "not set")


def _words(row: Row) -> str:
    if row["gpu_profile_id"] is None:
        return "no profile meets it"
    return f"{deployment(row)} at {number(row['usd_per_hour'])} USD/h"


def _of_profile(chosen: Row, here: Row, there: Row, whose: str, other: str) -> str:
    """Return how one side's choice does on the other side, `there`."""
    name = chosen["gpu_profile_id"]
    subject = f"{whose}, {name},"
    options = [there, *there["alternatives"]]
    found = next((row for row in options if row["gpu_profile_id"] == name), None)
    if found is not None:
        return f"{subject} in {other}: {_moves(here, found)}"
    for status, words in (("does_not_fit", "does not fit"), ("not_measured", "has no points")):
        if name in there[status]:
            return f"{subject} {words} in {other}"
    return f"{subject} does not meet the SLO in {other}, or is not on offer"


def _moves(here: Row, there: Row) -> str:
    """Return how the load that a replica holds, its price and the sum differ."""
    prices = [row["usd_per_hour"] / row["replicas"] for row in (here, there)]
    pairs = {
        "users a replica": (here["users_per_replica"], there["users_per_replica"]),
        "USD/h a replica": tuple(round(price, 9) for price in prices),
        "replicas": (here["replicas"], there["replicas"]),
        "USD/h in all": (here["usd_per_hour"], there["usd_per_hour"]),
    }
    moved = [
        f"{number(new)} {what} in place of {number(old)}"
        for what, (old, new) in pairs.items()
        if old != new
    ]
    return listed(moved) or "as here, but something else is cheaper"

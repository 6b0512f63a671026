"""An order of cells as a person reads it, and as JSON has it."""

from collections.abc import Sequence
from typing import Any

from sextant.answer.plan.choice import Candidate, Order, Outlook, Stop
from sextant.base.rows import frame_rows, jsonable
from sextant.pages.wording import aligned, number, percent, plural

_SHOWN = 3
"""Answers of a round that are printed."""
_DECISION = ["slo_id", "llm_id"]
_HEADER = ("round", "cell", "levels", "GPU-hours", "USD", "in all: GPU-hours", "USD", "S/O after")


def order_text(found: Order, candidates: Sequence[Candidate]) -> str:
    """Return an order of cells as text; `candidates` are those that it chose from."""
    n_slos, n_llms = (found.now.answers[name].nunique() for name in _DECISION)
    lines = [
        f"{plural(len(found.now.answers), 'answer')} ({plural(n_slos, 'SLO')} × "
        f"{plural(n_llms, 'LLM')}); expected S/O now {found.now.expected_so:.3f}"
    ]
    if found.rounds:
        lines += ["", "Measure, the most gain per cost first:", *aligned(_table(found))]
    before = found.now
    for place, done in enumerate(found.rounds, 1):
        changed = _changed(before, done.after)
        if changed:
            lines += ["", f"After round {place} the likeliest answers would change:", *changed]
        before = done.after
    return "\n".join([*lines, "", f"It stops there: {_why(found, candidates)}."])


def _table(found: Order) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [_HEADER]
    gpu_hours = usd = 0.0
    for place, done in enumerate(found.rounds, 1):
        for each in done.cells:
            gpu_hours, usd = gpu_hours + each.gpu_hours, usd + each.usd
            cost = (f"{value:.2f}" for value in (each.gpu_hours, each.usd, gpu_hours, usd))
            levels, so = ",".join(map(str, each.levels)), f"{done.after.expected_so:.3f}"
            name = f"{each.llm_id} on {each.gpu_profile_id}"
            rows.append((str(place), name, levels, *cost, so))
    return rows


def _changed(before: Outlook, after: Outlook) -> list[str]:
    """Return a line for each answer that is likely to be another one, the likeliest first."""
    both = before.answers.merge(after.answers, on=_DECISION, suffixes=("_was", ""))
    chosen = both[["gpu_profile_id", "replicas"]].astype(object).fillna("").to_numpy()
    earlier = both[["gpu_profile_id_was", "replicas_was"]].astype(object).fillna("").to_numpy()
    changed = both[(chosen != earlier).any(axis=1)].sort_values("share", ascending=False)
    lines = [
        f"  {row['llm_id']} for {row['slo_id']}: {_option(row)} ({percent(row['share'])} likely), "
        f"not {_option(row, '_was')}"
        for row in frame_rows(changed.head(_SHOWN))
    ]
    left = len(changed) - len(lines)
    return lines + ([f"  and {plural(left, 'answer')} more (--json has all)"] if left else [])


def _option(row: dict[str, Any], suffix: str = "") -> str:
    if row[f"gpu_profile_id{suffix}"] is None:
        return "no GPU profile"
    return f"{row[f'replicas{suffix}']} × {row[f'gpu_profile_id{suffix}']}"


def _why(found: Order, candidates: Sequence[Candidate]) -> str:
    if found.stopped is not Stop.BUDGET or found.rounds or not candidates:
        return found.stopped.value
    least = min((each.start_hours + each.level_hours) * each.n_devices for each in candidates)
    return f"{found.stopped.value}; one level of the cheapest cell takes {number(least)} GPU-hours"


def order_json(found: Order) -> dict[str, Any]:
    """Return an order as JSON has it: `now`, `rounds` and `stopped`."""
    return {
        "now": _outlook(found.now),
        "rounds": [
            {"cells": [each._asdict() for each in done.cells], "after": _outlook(done.after)}
            for done in found.rounds
        ],
        "stopped": found.stopped.name.lower(),
    }


def _outlook(outlook: Outlook) -> dict[str, Any]:
    return {"expected_so": outlook.expected_so, "answers": jsonable(outlook.answers)}

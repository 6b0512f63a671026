"""Standing accuracy: how far off the law is, by LLM family, GPU, engine and load.

    python benchmarks/accuracy_page.py [--out docs/accuracy.md] [--date 2026-11-29] [--source …]

Writes docs/accuracy.md from all that ships of today's engines, each LLM and then each GPU type
predicted from the others. It takes four minutes of one core, and says each fold on standard error.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from sextant.ask.source import load_sources, todays_sources
from sextant.judge.accuracy import predict_held_out
from sextant.judge.figures import Figures, group_figures, prediction_table
from sextant.judge.known import LLM_KINDS
from sextant.judge.task import Task, task_of_characterization
from sextant.pages.words import plural

SEED = 42
METRICS = ("ttft", "tpot")
USERS = (0, 4, 16, 64, 256, 1e9)
"""Bounds of the loads by which points are grouped."""
INPUT_TOKENS = (0, 1500, 4500, 1e9)
"""Bounds of the lengths of prompts by which points are grouped."""
_ENDS = (0.05, 0.95)

PAGE = """\
# How far off the law is

{date}, by `python benchmarks/accuracy_page.py`, from all that ships of today's engines: {n_points}
of {n_llms} on {n_gpus}. Each LLM is predicted from the others, by a law that has never seen its
architecture; in the tables of GPUs, each GPU type from the others. Other people measured them
([resources](../resources/README.md)). {set_aside}

## In short

Median error, share inside the 90% interval, and the upper over the lower end of that interval
(median):

{short}

Each LLM was held out; in the last line each GPU type. An LLM counts as the last kind that it is of:

{kinds}

## By LLM family

Signed errors: predicted over measured, less one. +20 means that the law says 20% more than was
measured. The range holds 90% of the points. A family is the `model_type` of `config.json`.

{families}

## By GPU type, held out

{gpus}

## By engine

{engines}

## By load

{loads}

## What this is not

- It is not the error of an answer about an LLM that you measured: give the measurement (`--probe`),
  and the law goes through it.
- It says nothing about prices or decisions. [results.md](results.md) judges decisions.
- The points are no sample of what people serve. Their requests are alike, each user sends the next
  one at once, and most GPUs are Hopper or Blackwell.
- Errors include what load tests do not say of themselves: settings, warm-up, hosts.
- Energy, servers of 2023 (`archive:llm-pilot`) and requests that arrive at random are judged in
  [results.md](results.md).

`sextant evaluate --hold-out gpu` prints the same of your own sources
([cli.md](cli.md#judge-a-predictor)).
"""


@dataclass(frozen=True)
class Judged:
    """Predictions with LLMs held out and with GPU types held out (`prediction_table`)."""

    by_llm: pd.DataFrame
    """With `family`, the LLM's `model_type`."""
    by_gpu: pd.DataFrame
    """With `gpu`, the type of GPU."""


def judged(task: Task) -> Judged:
    """Return the predictions, with the family of each LLM and the type of each GPU."""

    def held_out(what: str) -> pd.DataFrame:
        def say(step: str) -> None:
            print(f"{what} held out: {step}", file=sys.stderr, flush=True)

        # One process: the bytes of a fit do not depend on the machine's cores.
        found = predict_held_out(task, "roofline", SEED, what, n_jobs=1, progress=say)
        return prediction_table(found)

    by_gpu = held_out("gpu")
    by_llm = held_out("llm")
    family = by_llm["llm_id"].map({name: llm.llm_type for name, llm in task.facts.llms.items()})
    return Judged(by_llm.assign(family=family), by_gpu.assign(gpu=by_gpu["fold"]))


def page(found: Judged, date: str) -> str:
    """Return the page."""
    every = found.by_llm
    by_llm, by_gpu = (rows[~rows["is_impossible"]] for rows in (found.by_llm, found.by_gpu))
    n_impossible = int(every["is_impossible"].sum())
    loads = {"users at once": ("users", USERS), "input tokens": ("input_tokens", INPUT_TOKENS)}
    parts = [
        signed_rows(by_llm, _ranges(by_llm[column], bounds), f"{{}} {unit}")
        for unit, (column, bounds) in loads.items()
    ]
    return PAGE.format(
        date=date,
        n_points=plural(len(every), "point"),
        n_llms=plural(every["llm_id"].nunique(), "LLM"),
        n_gpus=plural(found.by_gpu["gpu"].nunique(), "GPU type"),
        set_aside=f"{plural(n_impossible, 'point')} that cannot be "
        "([predictor.md](predictor.md#the-law-of-a-step)) are left out.",
        kinds="\n".join(f"- {name}: {what}" for name, what in LLM_KINDS.items()),
        short=short_table(found),
        families=table("family", signed_rows(by_llm, by_llm["family"], "`{}`")),
        gpus=table("GPU type", signed_rows(by_gpu, by_gpu["gpu"], "{}")),
        engines=table("engine", signed_rows(by_llm, by_llm["engine"].fillna("unknown"), "{}")),
        loads=table("load", [row for rows in parts for row in rows]),
    )


def short_table(found: Judged) -> str:
    """Return the errors and intervals of all points, engines and kinds of LLMs."""
    head = ["", "points", *(f"{it}: median, inside, high/low" for it in ("TTFT", "TPOT"))]
    rows: dict[str, dict[str, Figures]] = {}
    for each in group_figures(found.by_llm):
        if each.by in ("all", "engine", "llm_kind"):
            rows.setdefault(each.group, {})[each.metric] = each.figures
    for each in group_figures(found.by_gpu):
        if each.by == "all":
            rows.setdefault("GPU types held out", {})[each.metric] = each.figures
    lines = [[name, *_short_cells(figures)] for name, figures in rows.items()]
    return _markdown(head, lines)


def _short_cells(figures: Mapping[str, Figures]) -> list[str]:
    cells = [f"{max(each.n for each in figures.values()):,}"]
    for metric in METRICS:
        each = figures.get(metric)
        is_known = each is not None and None not in (each.mdape, each.coverage, each.high_over_low)
        cells.append(
            f"{each.mdape:.0%}, {each.coverage:.0%}, {each.high_over_low:.2g}" if is_known else "–"
        )
    return cells


def signed_rows(rows: pd.DataFrame, by: pd.Series, name: str) -> list[list[str]]:
    """Return a row for each value of `by`: points, and median and range of the signed errors."""
    ordered = by.cat.categories if hasattr(by, "cat") else sorted(by.unique())
    return [
        [name.format(value), f"{len(of):,}", *_signed_cells(of)]
        for value in ordered
        if len(of := rows[by == value])
    ]


def _signed_cells(rows: pd.DataFrame) -> list[str]:
    cells = []
    for metric in METRICS:
        errors = (rows[f"{metric}_predicted_ms"] / rows[f"{metric}_ms"] - 1).dropna()
        if errors.empty:
            cells += ["–", "–"]
            continue
        low, high = errors.quantile([*_ENDS])
        cells += [_signed(errors.median()), f"{_signed(low)} to {_signed(high)}"]
    return cells


def _signed(share: float) -> str:
    shown = round(100 * share)
    return f"{shown:+d}".replace("-", "−") if shown else "0"


def _ranges(values: pd.Series, bounds: Sequence[float]) -> pd.Series:
    """Return the range of each value, in words; null where there is no value."""
    return pd.cut(values.astype(float), bounds).cat.rename_categories(_words)


def _words(between: pd.Interval) -> str:
    if between.right == USERS[-1]:
        return f"over {between.left:,.0f}"
    return f"{between.left + 1:,.0f} to {between.right:,.0f}"


def table(what: str, rows: Sequence[Sequence[str]]) -> str:
    """Return signed errors as a table."""
    head = [what, "points", "TTFT off by %", "range", "TPOT off by %", "range"]
    return _markdown(head, rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *("--:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    parser.add_argument("--date", default=datetime.now(UTC).date().isoformat())
    parser.add_argument("--source", action="append", help="all that ships by default")
    given = parser.parse_args()
    known = load_sources(given.source)[0] if given.source else todays_sources()
    given.out.write_text(
        page(judged(task_of_characterization(known)), given.date), encoding="utf-8"
    )
    print(given.out)


if __name__ == "__main__":
    main()

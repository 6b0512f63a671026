"""The answers of `sextant plan`, `sextant measure` and `sextant doctor` in words."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pandas as pd

from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import number, percent, plural
from sextant.plan.cell_order import Candidate, Expectation, MeasurementPlan, Stop
from sextant.plan.doctor import Check
from sextant.plan.estimate import CellPlan
from sextant.plan.run_plan import PlanAnswer

_SHOWN = 3  # Changed answers of a round that are printed.
_DECISION = ["slo_id", "llm_id"]
_PROFILE_HEADER = (
    *("GPU profile", "cells", "fit", "GPUs", "GPU model", "cores", "memory GB", "limit h"),
    *("hours", "GPU-hours", "USD"),
)
_ROUND_HEADER = (
    *("round", "cell", "levels", "GPU-hours", "USD"),
    *("in all: GPU-hours", "USD", "S/O after"),
)


def plan_document(plan: PlanAnswer) -> Document:
    """Return what a run would do, for people (blocks) and programs (data)."""
    submissions = plural(plan.n_submissions, "submission")
    n_jobs = plural(sum(plan.jobs.values()), "job")
    blocks: list[Block] = [
        Headline(f"{n_jobs} would run ({submissions} to a scheduler)"),
        Table((), [(rule, f"{count:,}") for rule, count in plan.jobs.items()]),
    ]
    blocks += [Note(warning, "warning") for warning in plan.warnings]
    cells = plan.cells
    if not cells:
        blocks.append(Note("No measurement: it needs no GPU time."))
        return Document("Plan of a run", blocks, plan.to_dict())

    n_llms = plural(len({cell.key.llm_id for cell in cells}), "LLM")
    n_profiles = plural(len(plan.cells_by_profile), "GPU profile")
    n_points = plural(sum(cell.n_levels for cell in cells), "point")
    line = f"{plural(len(cells), 'cell')} to measure ({n_llms}, {n_profiles}), {n_points}"
    blocks.append(Note(line))
    blocks += [Note(change) for change in plan.changes]
    if n_left_out := sum(not cell.n_levels for cell in cells):
        blocks.append(Note(f"{n_left_out:,} of them do not fit into memory and end at once"))
    rows = [_profile_row(name, of_profile) for name, of_profile in plan.cells_by_profile.items()]
    blocks.append(Table(_PROFILE_HEADER, rows))

    hours = plan.hours
    nodes = "one node" if hours.n_nodes == 1 else f"{hours.n_nodes} nodes"
    times = [
        f"{hours.one_at_a_time:.1f} h with one cell at a time",
        f"{hours.on_nodes:.1f} h with {nodes} of each GPU profile (the longest cells first)",
        "Waits in a scheduler's queue and repeated jobs are not included.",
    ]
    estimate = f"{plan.gpu_hours:,.1f} GPU-hours, {plan.usd:,.2f} USD"
    blocks.append(Section("Estimate", [Headline(estimate), Facts(times)]))

    cells_by_terms = Counter(cell.basis for cell in cells if cell.basis)
    bases = [
        f"{n_cells:,} cells, {terms.origin}: "
        f"{'all allowed' if terms.starts is None else f'{terms.starts:g}'} server starts, each "
        f"{terms.start_s:.0f} s and the weights at {terms.load_gib_per_s:g} GiB/s; "
        f"{terms.level_extra_s:.1f} s on top of a level, {terms.cell_extra_s:.0f} s of a cell"
        for terms, n_cells in cells_by_terms.items()
    ]
    blocks.append(Section("The estimate uses", [Facts(bases)]))
    return Document("Plan of a run", blocks, plan.to_dict())


def _profile_row(name: str, cells: Sequence[CellPlan]) -> tuple[str, ...]:
    """Return the row of a GPU profile; a request that differs among its cells is a range."""
    requests = [cell.request for cell in cells if cell.request is not None]
    return (
        name,
        str(len(cells)),
        str(sum(cell.n_levels > 0 for cell in cells)),
        _span(request.gpus for request in requests),
        requests[0].gpu_model or "any",
        _span(request.cores for request in requests),
        _span((request.memory_mb or 0) / 1000 for request in requests),
        _span((request.minutes or 0) / 60 for request in requests),
        f"{sum(cell.seconds for cell in cells) / 3600:.1f}",
        f"{sum(cell.seconds * cell.n_devices for cell in cells) / 3600:.1f}",
        f"{sum(cell.usd for cell in cells):,.2f}",
    )


def _span(values: Iterable[float]) -> str:
    values = [*values]
    low, high = (f"{end:.1f}".removesuffix(".0") for end in (min(values), max(values)))
    return low if low == high else f"{low}-{high}"


def measurement_document(plan: MeasurementPlan, candidates: Sequence[Candidate]) -> Document:
    """Return a measurement plan for people and programs; it chose from `candidates`."""
    now = plan.now
    n_slos, n_llms = (now.answers[name].nunique() for name in _DECISION)
    product = f"{plural(n_slos, 'SLO')} × {plural(n_llms, 'LLM')}"
    count = plural(len(now.answers), "answer")
    blocks: list[Block] = [Headline(f"{count} ({product}); expected S/O now {now.expected_so:.3f}")]
    blocks += [Note(note, "warning") for note in plan.notes]

    if plan.rounds:
        title = "Cells to measure, the largest gain per cost first"
        blocks.append(Section(title, [Table(_ROUND_HEADER, _round_rows(plan), {0, 1, 2})]))

    states = [now, *(round_.after for round_ in plan.rounds)]
    for n_round, (before, after) in enumerate(pairwise(states), 1):
        both = _with_option_words(before).merge(
            _with_option_words(after), on=_DECISION, suffixes=("_was", "")
        )
        changed = both[both["option"] != both["option_was"]]
        lines = [
            f"{row.llm_id} for {row.slo_id}: {row.option} ({percent(row.share)} likely), "
            f"not {row.option_was}"
            for row in changed.sort_values("share", ascending=False).head(_SHOWN).itertuples()
        ]
        if n_more := len(changed) - len(lines):
            lines.append(f"and {plural(n_more, 'answer')} more (--format json has all)")
        if lines:
            title = f"After round {n_round} the likeliest answers would change"
            blocks.append(Section(title, [Facts(lines)]))

    why = plan.stopped.value
    if plan.stopped is Stop.BUDGET and not plan.rounds and candidates:
        cheapest = min(candidate.least_gpu_hours for candidate in candidates)
        why += f"; one level of the cheapest cell takes {number(cheapest)} GPU-hours"
    blocks.append(Note(f"The plan ends there: {why}."))
    return Document("Measurement plan", blocks, plan.to_dict())


def _round_rows(plan: MeasurementPlan) -> list[tuple[str, ...]]:
    rows = []
    gpu_hours = 0.0
    usd = 0.0
    for n_round, round_ in enumerate(plan.rounds, 1):
        for cell in round_.cells:
            gpu_hours += cell.gpu_hours
            usd += cell.usd
            costs = (cell.gpu_hours, cell.usd, gpu_hours, usd)
            rows.append(
                (
                    str(n_round),
                    f"{cell.llm_id} on {cell.gpu_profile_id}",
                    ",".join(map(str, cell.levels)),
                    *(f"{cost:.2f}" for cost in costs),
                    f"{round_.after.expected_so:.3f}",
                )
            )
    return rows


def _with_option_words(expectation: Expectation) -> pd.DataFrame:
    """Return the answers with a column `option`, e.g. `2 × 1xA10-24GB`."""
    answers = expectation.answers
    options = zip(answers["replicas"], answers["gpu_profile_id"], strict=True)
    words = ["no GPU profile" if pd.isna(n) else f"{n} × {name}" for n, name in options]
    return answers.assign(option=words)


def machine_document(checks: Sequence[Check]) -> Document:
    """Return the checks as a table, and what to do about what is missing."""
    rows = [(check.state, check.name, check.result) for check in checks]
    fixes = [f"{check.name}: {check.fix}" for check in checks if check.fix]
    return Document("This machine", [Table((), rows, {0, 1, 2}), Facts(fixes)])

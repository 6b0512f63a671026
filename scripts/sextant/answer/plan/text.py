"""The plan as a person reads it."""

from collections import Counter
from collections.abc import Iterable, Sequence

from sextant.answer.plan.history import Error
from sextant.answer.plan.summary import CellPlan, Plan
from sextant.pages.wording import aligned, plural

_LLM_PILOT = (
    "           (LLM-Pilot counts so: about 8 h for 10 LLMs on 14 GPU profiles at 8 levels, an\n"
    "           LLM 30 minutes to tune batch weights and 20 to load; here {minutes:.0f} minutes)"
)


def plan_text(plan: Plan) -> str:
    """Return a plan as a person reads it."""
    n_jobs = sum(plan.jobs.values())
    parts = [
        f"{plural(n_jobs, 'job')} would run ({plural(plan.n_submissions, 'submission')} to a "
        "scheduler):"
    ]
    parts += [f"  {rule:24} {count:6,}" for rule, count in plan.jobs.items()]
    if plan.cells:
        parts += ["", *_cells_text(plan), "", *_profile_table(plan.cells), "", *_hours_text(plan)]
        parts += ["", "The estimate rests on:", *_bases(plan.cells)]
    else:
        parts += ["", "No measurement: nothing that costs GPU time."]
    return "\n".join([*parts, *_errors_text(plan.errors)])


def _cells_text(plan: Plan) -> list[str]:
    cells = plan.cells
    fitting = [cell for cell in cells if cell.n_levels]
    llms = {cell.key.llm_id for cell in cells}
    profiles = {cell.key.gpu_profile_id for cell in cells}
    lines = [
        f"{plural(len(cells), 'cell')} to measure ({plural(len(llms), 'LLM')}, "
        f"{plural(len(profiles), 'GPU profile')}), "
        f"{plural(sum(cell.n_levels for cell in cells), 'point')}"
    ]
    if n_left_out := len(cells) - len(fitting):
        lines.append(f"{n_left_out:,} of them do not fit into memory and end at once")
    return lines


_HEADER = (
    *("GPU profile", "cells", "fit", "GPUs", "GPU model", "cores", "memory GB", "limit h"),
    *("hours", "GPU-hours", "USD"),
)


def _profile_table(cells: Sequence[CellPlan]) -> list[str]:
    """Return a line for each GPU profile; a request that differs among its cells is a range."""
    names = sorted({cell.key.gpu_profile_id for cell in cells})
    rows = [[c for c in cells if c.key.gpu_profile_id == name] for name in names]
    return aligned([_HEADER, *map(_profile_row, rows)], are_numbers=True)


def _profile_row(cells: Sequence[CellPlan]) -> tuple[str, ...]:
    requests = [cell.request for cell in cells]
    hours = sum(cell.seconds for cell in cells) / 3600
    gpu_hours = sum(cell.seconds * cell.n_devices for cell in cells) / 3600
    return (
        cells[0].key.gpu_profile_id,
        str(len(cells)),
        str(sum(cell.n_levels > 0 for cell in cells)),
        _span(request.gpus for request in requests),
        requests[0].gpu_model or "any",
        _span(request.cores for request in requests),
        _span((request.memory_mb or 0) / 1000 for request in requests),
        _span((request.minutes or 0) / 60 for request in requests),
        f"{hours:.1f}",
        f"{gpu_hours:.1f}",
        f"{sum(cell.usd for cell in cells):,.2f}",
    )


def _span(values: Iterable[float]) -> str:
    values = list(values)
    ends = [f"{value:.1f}".removesuffix(".0") for value in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else "-".join(ends)


def _hours_text(plan: Plan) -> list[str]:
    hours = plan.hours
    n_llms = len({cell.key.llm_id for cell in plan.cells})
    minutes = hours.llm_by_llm * 60 / n_llms
    is_gpu = any(cell.request.gpus for cell in plan.cells)
    each = "one node" if hours.n_nodes == 1 else f"{hours.n_nodes} nodes"
    return [
        f"Estimate: {plan.gpu_hours:,.1f} GPU-hours, {plan.usd:,.2f} USD",
        f"  {hours.one_at_a_time:8.1f} h with one cell at a time",
        f"  {hours.on_nodes:8.1f} h with {each} of each GPU profile (the longest cells first)",
        f"  {hours.llm_by_llm:8.1f} h with one LLM at a time on all GPU profiles at once",
        *([_LLM_PILOT.format(minutes=minutes)] if is_gpu else []),
        "  Waits in a scheduler's queue and repeated jobs are not in it.",
    ]


def _bases(cells: Sequence[CellPlan]) -> list[str]:
    counts = Counter(cell.basis for cell in cells if cell.basis)
    return [
        f"  {count:,} cells, {basis.origin}: "
        f"{'all allowed' if basis.starts is None else f'{basis.starts:g}'} server starts, each "
        f"{basis.start_s:.0f} s and the weights at {basis.load_gib_per_s:g} GiB/s; "
        f"{basis.level_extra_s:.1f} s on top of a level, {basis.cell_extra_s:.0f} s of a cell"
        for basis, count in counts.items()
    ]


_WORDS = {"assumed": "on assumptions alone", "medians": "by medians of the other cells"}


def _errors_text(errors: dict[str, Error]) -> list[str]:
    if not errors:
        return ["No cell here was measured with its time, so the estimate is not tested."]
    lines = ["", "Estimated against measured time of finished cells:"]
    for name, error in errors.items():
        lines.append(
            f"  {_WORDS[name]}: {error.total_ratio:.2f} times in all, of a cell "
            f"{error.median_ratio:.2f} ({error.lowest_ratio:.2f} to {error.highest_ratio:.2f}; "
            f"{error.n_cells} cells)"
        )
    return lines

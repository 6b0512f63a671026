"""What an import came to, in words."""

from sextant.importing.decisions import Verdict
from sextant.importing.merge import Report

_WORDS = {
    Verdict.new: "to take over",
    Verdict.duplicate: "here already",
    Verdict.not_asked_for: "not asked for here",
    Verdict.damaged: "damaged",
    Verdict.other_definition: "measured by another definition",
    Verdict.other_measurement: "measured here too, and differently",
}
# What needs no word about each cell.
_PLAIN = (Verdict.new, Verdict.duplicate)


def report_text(report: Report) -> str:
    """Return the count of each verdict, the cells that are left out and why, the conflicts."""
    words = _WORDS | ({Verdict.new: "taken over"} if report.is_done else {})
    lines = [f"{len(report.judged)} cells found"]
    for verdict, word in words.items():
        cells = report.cells(verdict)
        lines += [f"  {len(cells):6,} {word}"] if cells else []
        if verdict not in _PLAIN:
            lines += [f"         {it.cell.place}: {it.detail}" for it in cells]
    if report.conflicts:
        lines.append("Measured with what the cells here were not:")
        lines += [f"  {conflict}" for conflict in report.conflicts]
    return "\n".join(lines)

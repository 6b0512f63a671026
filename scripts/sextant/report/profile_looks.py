"""How the curves of GPU profiles look, the same in all figures of a report."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sextant.base.rows import Row
from sextant.pages.figure import COLOURS, INK, LINES, MARKERS, Look
from sextant.pages.wording import plural


class ProfileLooks(NamedTuple):
    """How the curves of GPU profiles look."""

    of: dict[str, Look]
    """By `gpu_profile_id`: colour, marker and line."""
    legend: list[tuple[str, Look]]
    """What tells curves apart, as labels and looks."""
    points_legend: list[tuple[str, Look]]
    """The same for points without lines."""


def profile_looks(profile_ids: Sequence[str], profiles: Sequence[Row]) -> ProfileLooks:
    """Return looks where colour and marker tell the GPU type and the line the number of GPUs.

    If the sheet has one type, or type and number do not tell all profiles apart, each profile has
    a colour and marker of its own instead (no two alike up to 168). `profiles` are rows of table
    `gpu_profile`; not every profile with points is in it.
    """
    parts = {row["gpu_profile_id"]: (row["gpu_id"], row["n_gpus"]) for row in profiles}
    kinds = {name: parts[name] for name in profile_ids if name in parts}
    types = list(dict.fromkeys(gpu_id for gpu_id, _ in kinds.values()))
    if len(types) < 2 or len({*kinds.values()}) < len(profile_ids):
        looks = {name: _look(index) for index, name in enumerate(profile_ids)}
        return ProfileLooks(looks, [*looks.items()], _without_lines(looks))
    by_type = {gpu_id: _look(index) for index, gpu_id in enumerate(types)}
    numbers = sorted({n_gpus for _, n_gpus in kinds.values()})
    lines = {n: {"linestyle": LINES[i % len(LINES)]} for i, n in enumerate(numbers)}
    looks = {name: {**by_type[gpu_id], **lines[n]} for name, (gpu_id, n) in kinds.items()}
    words: list[tuple[str, Look]]
    words = [(plural(n, "GPU"), {"color": INK, **line}) for n, line in lines.items()]
    marks = _without_lines(by_type)
    return ProfileLooks(looks, [*marks, *words], marks)


def _look(index: int) -> Look:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index // (len(COLOURS) * len(MARKERS)) % len(LINES)],
    }


def _without_lines(looks: Mapping[str, Look]) -> list[tuple[str, Look]]:
    return [(name, {**look, "linestyle": "none"}) for name, look in looks.items()]

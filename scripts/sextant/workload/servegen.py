"""Clients of ServeGen's published tables (Alibaba, Apache-2.0), as one arrival process.

A service is a folder with a file `chunk-<client>-trace.csv` for each client, without a header. A
row is a window: its start (s), requests per second, coefficient of variation of the gaps, the
distribution of the gaps (`Gamma` or `Weibull`; empty or `nan`: none) and its parameters, shape
first.
"""

import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

from sextant.base.errors import InputError
from sextant.workload.modulated import Clients, Mirrored

_FILES = "chunk-*-trace.csv"
_FAMILIES = {"gamma": False, "weibull": True}
_N_CELLS = 6
WINDOW_S = 600.0
"""Of a client with one window only."""


def read_clients(
    folder: str | Path, *, start_s: float = 0.0, duration_s: float | None = None
) -> Clients:
    """Return the clients of a service, each with its windows from `start_s` on.

    A window without a request, or of a client that has no such window, is silent. Time 0 of the
    process is `start_s`.

    Raises:
        InputError: no such files, a malformed row, or no request in that time.
    """
    folder = Path(folder)
    files = sorted(folder.glob(_FILES))
    if not files:
        fix = "give the folder of a service of ServeGen, e.g. data/reason/deepseek-r1"
        raise InputError(f"there is no {_FILES}", file=folder, fix=fix)
    end_s = math.inf if duration_s is None else start_s + duration_s
    clients = (_client(list(_windows(path)), start_s, end_s) for path in files)
    found = tuple(client for client in clients if client)
    if not found:
        problem = f"no client sends a request from {start_s:g} s to {end_s:g} s"
        raise InputError(problem, file=folder, fix="give another time")
    return Clients(found)


def _windows(path: Path) -> Iterator[tuple[float, float, float, bool]]:
    """Yield start, rate, shape and whether the gaps are Weibull-distributed, of each window."""
    with path.open(newline="", encoding="utf-8") as handle:
        for number, row in enumerate(csv.reader(handle), start=1):
            try:
                if len(row) != _N_CELLS:
                    raise ValueError(f"{len(row)} cells, not {_N_CELLS}")
                start_s, rate_rps, shape = float(row[0]), float(row[1]), float(row[4])
                family = row[3].lower()
                is_known = family in _FAMILIES and shape > 0
                if not (0 <= start_s < math.inf and 0 <= rate_rps < math.inf):
                    raise ValueError("a start or a rate below 0, or not finite")
                if family not in (*_FAMILIES, "", "nan"):
                    raise ValueError(f"unknown distribution {row[3]!r}")
            except ValueError as error:
                fix = "give ServeGen's own files: start, rate, CV, distribution, two parameters"
                raise InputError(str(error), file=path, row=number, fix=fix) from None
            yield (start_s, rate_rps, shape if is_known else 1.0, is_known and _FAMILIES[family])


def _client(
    windows: list[tuple[float, float, float, bool]], start_s: float, end_s: float
) -> Mirrored | None:
    if not windows:
        return None
    starts = [window[0] for window in windows]
    if sorted(set(starts)) != starts:
        raise InputError("windows do not ascend", field="start_s", fix="give ServeGen's own files")
    lasting = [later - first for first, later in itertools.pairwise(starts)]
    lasting.append(lasting[-1] if lasting else WINDOW_S)
    kept = [
        (first - start_s, own_s, rate_rps * own_s, shape, is_weibull)
        for (first, rate_rps, shape, is_weibull), own_s in zip(windows, lasting, strict=True)
        if start_s <= first < end_s
    ]
    if not any(n_requests for _, _, n_requests, _, _ in kept):
        return None
    return Mirrored(*zip(*kept, strict=True))

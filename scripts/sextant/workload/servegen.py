"""Clients of ServeGen's published tables (Alibaba, Apache-2.0): their arrivals, and their requests.

A service is a folder with a file `chunk-<client>-trace.csv` for each client, without a header. A
row is a window: its start (s), requests per second, coefficient of variation of the gaps, the
distribution of the gaps (`Gamma` or `Weibull`; empty or `nan`: none) and its parameters, shape
first. `chunk-<client>-dataset.json` beside it has, by the start of a longer window (s), the shares
of `input_tokens` and `output_tokens`, each as a text `{12: 0.5, 13: 0.5}`.
"""

import ast
import csv
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.trace.trace_format import TRACE_COLUMNS
from sextant.workload.modulated import Clients, Mirrored
from sextant.workload.seeds import child_seed

_FILES = "chunk-*-trace.csv"
_LENGTHS = ("input_tokens", "output_tokens")
_FAMILIES = {"gamma": False, "weibull": True}
_N_CELLS = 6
_MOST_TOKENS = np.iinfo(np.int32).max
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
    return Clients(tuple(_clients(Path(folder), start_s, duration_s).values()))


def is_service(folder: str | Path) -> bool:
    """Return whether a folder holds ServeGen's tables of clients."""
    return any(Path(folder).glob(_FILES))


def draw_service(
    folder: str | Path, *, seed: int, n: int | None = None, duration_s: float | None = None
) -> pd.DataFrame:
    """Draw the requests of a service: arrivals and lengths of each client by its own windows.

    Inputs and outputs are drawn independently of each other, as the tables have them.

    Args:
        folder: of a service whose clients all have their table of lengths.
        seed: of the draw; each client has streams of its own.
        n: most requests.
        duration_s: seconds from the tables' start; None: as long as they last.

    Returns:
        Requests in the trace contract's columns, in the order of arrival: `llm` is the folder's
        name, `service` the client, `chunk-<number>`.

    Raises:
        InputError: as `read_clients`, or a client's table of lengths is missing or malformed.
    """
    folder, parts = Path(folder), []
    clients = _clients(folder, 0.0, duration_s)
    if n is not None and duration_s is None:
        duration_s = _enough_s([*clients.values()], 2 * n + 100)
    for number, (name, client) in enumerate(clients.items()):
        is_cut = duration_s is not None and duration_s < client.span_s
        own_s = duration_s if is_cut else None
        arrival_s = client.times(duration_s=own_s, seed=child_seed(seed, 2 * number))
        rng = np.random.default_rng(child_seed(seed, 2 * number + 1))
        lengths = _lengths(folder / f"{name}-dataset.json", arrival_s, rng)
        parts.append(pd.DataFrame({"arrival_s": arrival_s, "service": name, **lengths}))
    drawn = pd.concat(parts).sort_values("arrival_s", kind="stable", ignore_index=True)[:n]
    ids = [str(number) for number in range(len(drawn))]
    status = np.where(drawn["output_tokens"] > 0, "ok", "failed")
    drawn = drawn.assign(request_id=ids, llm=folder.name, status=status)
    return drawn.reindex(columns=list(TRACE_COLUMNS))


def _enough_s(clients: list[Mirrored], n_requests: int) -> float | None:
    """Return the end of the window by which so many requests are expected, None: the tables'."""
    starts, counts = (
        np.concatenate([getattr(client, name) for client in clients])
        for name in ("start_s", "n_requests")
    )
    order = np.argsort(starts)
    place = np.searchsorted(np.cumsum(counts[order]), n_requests)
    return float(starts[order][place]) + WINDOW_S if place < len(order) else None


def _clients(folder: Path, start_s: float, duration_s: float | None) -> dict[str, Mirrored]:
    """Return by their names the clients that send a request in that time."""
    if not is_service(folder):
        fix = "give the folder of a service of ServeGen, e.g. data/reason/deepseek-r1"
        raise InputError(f"there is no {_FILES}", file=folder, fix=fix)
    end_s = math.inf if duration_s is None else start_s + duration_s
    found = {
        path.name.removesuffix("-trace.csv"): client
        for path in sorted(folder.glob(_FILES))
        if (client := _client(list(_windows(path)), start_s, end_s))
    }
    if not found:
        problem = f"no client sends a request from {start_s:g} s to {end_s:g} s"
        raise InputError(problem, file=folder, fix="give another time")
    return found


def _lengths(path: Path, arrival_s: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw the lengths of a client's requests by the windows that they arrive in."""
    fix = "give ServeGen's own file: windows with input_tokens and output_tokens, as shares"
    if not path.is_file():
        raise InputError("the client's lengths are missing", file=path, fix=fix)
    try:
        tables = {float(start): shares for start, shares in json.loads(path.read_text()).items()}
        starts = np.array(sorted(tables))
        window = np.searchsorted(starts, arrival_s, side="right") - 1
        drawn = {name: np.zeros(len(arrival_s), np.int32) for name in _LENGTHS}
        for number in np.unique(window):
            is_own, start = window == number, starts[number] if number >= 0 else None
            for name in _LENGTHS:
                shares = ast.literal_eval(tables[start][name]) if start is not None else {}
                if not (shares and min(shares) >= (name == "input_tokens")):
                    raise ValueError(f"no {name} of a request at {arrival_s[is_own][0]:g} s")
                if not all(isinstance(each, int) and each <= _MOST_TOKENS for each in shares):
                    raise ValueError(f"{name} are whole numbers, {_MOST_TOKENS:,} at most")
                weights = np.array([*shares.values()], float)
                if not (weights.min() >= 0 and 0 < weights.sum() < math.inf):
                    raise ValueError(f"the shares of {name} are below 0, all 0, or not finite")
                picked = rng.choice([*shares], is_own.sum(), p=weights / weights.sum())
                drawn[name][is_own] = picked
    except (ValueError, TypeError, KeyError, SyntaxError, AttributeError) as error:
        problem = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"not a table of lengths ({problem})", file=path, fix=fix) from None
    return drawn


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

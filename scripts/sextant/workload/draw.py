"""Traces drawn from workloads or from ServeGen's tables, in our format or another tool's.

ServeGen (Alibaba, Apache-2.0): a service is a folder. `chunk-<client>-trace.csv` has a window in
each row: its start (s), requests per second, CV of the gaps, their distribution (`Gamma` or
`Weibull`; empty or `nan`: none) and its parameters, shape first. `chunk-<client>-dataset.json` has,
by the start of a longer window (s), the shares of `input_tokens` and `output_tokens`, each as a
text `{12: 0.5, 13: 0.5}`.
"""

import ast
import csv
import inspect
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import write_parquet
from sextant.base.whole_files import atomic_path
from sextant.trace.choice import OPTIONS
from sextant.trace.trace_format import MAX_INT32, TRACE_COLUMNS
from sextant.workload import generators, published, trace_arrivals
from sextant.workload.published import zipf_request_model
from sextant.workload.request_model import RequestModel

FORMATS = ("parquet", "csv", "mooncake", "vllm-timed-trace")
"""What `write_trace` writes. The first two are Sextant's own trace contract."""
MOONCAKE_BLOCK_TOKENS = 512  # input tokens per entry of `hash_ids` in its traces (FAST'25)
VLLM_BLOCK_TOKENS = 16  # the same in vLLM's `timed_trace`, by default
_ZIPF_OUTPUTS = 100_000  # drawn to stand for a model's distribution
_SERVICE_FILES = "chunk-*-trace.csv"
_LENGTHS = ("input_tokens", "output_tokens")
_FAMILIES = {"gamma": False, "weibull": True}
_N_CELLS = 6
_LINE = ("timestamp", "input_length", "output_length", "hash_ids")
_WINDOW_S = 600.0  # of a client with one window only


def open_workload(name: str | Path) -> RequestModel:
    """Return the requests of a use case that ships, or of a folder or file by its path."""
    if str(name) in published.use_case_names() and not Path(name).exists():
        return published.load_use_case(str(name))[0]
    if not Path(name).exists():
        names = ", ".join(published.use_case_names())
        fix = f"give a workload's folder, a histogram, or one of {names}"
        raise InputError("there is no such workload", file=name, fix=fix)
    return published.require_lengths(published.load_request_model(name), name)


def with_zipf_inputs(model: RequestModel, theta: float) -> RequestModel:
    """Return a model with Zipf inputs (BurstGPT, IV-B) within its bounds, and its own outputs."""
    inputs = model.frame["input_tokens"]
    outputs = model.sample(_ZIPF_OUTPUTS, seed=0)["output_tokens"].to_numpy()
    return zipf_request_model(theta, int(inputs.min()), int(inputs.max()), outputs)


def _fitted(workload: str | Path, rate_rps: float | None = None) -> generators.Arrivals:
    try:
        if not Path(workload).is_dir():
            reason = "only the folder of a fitted workload has them"
            raise InputError(f"the workload has no arrivals ({reason})")
        if rate_rps is None:
            return trace_arrivals.fitted_arrivals(workload)
        return trace_arrivals.arrivals_at_rate(workload, trace_arrivals.FITTED, rate_rps)
    except InputError as error:
        if error.field not in (None, "arrivals"):
            raise
        fix = "give --request-rate, or another --arrivals"
        raise InputError(error.problem, file=error.file, field="--arrivals", fix=fix) from None


_PLAIN = ("constant", "gamma", "windows", "varying", "replay", "inf")
ARRIVALS: dict[str, Callable[..., generators.Arrivals]] = {
    "fitted": _fitted,
    "poisson": generators.poisson,
    **{kind: trace_arrivals.PROCESSES[kind] for kind in _PLAIN},
}
"""Where arrival times come from, as the command line names it; the parameters are its options."""


@dataclass(frozen=True, kw_only=True)
class ArrivalParameters:
    """Parameters of arrival processes, as the command line has them; None: not stated."""

    rate_rps: float | None = None
    alpha: float | Sequence[float] | None = None  # shape; of `varying` the three coefficients
    beta_s: Sequence[float] | None = None  # of `varying`: the coefficients of the scale
    over: str | None = None  # of `varying`: time or steps
    every: int | None = None  # of `varying`: requests from one change to the next
    trace: str | Path | None = None  # of `windows` and `replay`
    llm: str | None = None
    service: str | None = None
    time_factor: float | None = None


def chosen_arrivals(
    name: str, workload: str | Path | None, parameters: ArrivalParameters
) -> generators.Arrivals:
    """Return the arrival process that the options of a command describe.

    `name` is one of `ARRIVALS`, `workload` the folder of a fitted workload, for `fitted`. Raises
    InputError: an unknown process, or a parameter that it lacks, does not know or refuses.
    """
    if name not in ARRIVALS:
        fix = f"use one of {', '.join(ARRIVALS)}"
        raise InputError(f"unknown arrivals {name!r}", field="--arrivals", fix=fix)

    values = {**vars(parameters), "workload": workload if name == "fitted" else None}
    chosen = {key: value for key, value in values.items() if value is not None}
    wanted = inspect.signature(ARRIVALS[name]).parameters
    options = {key: "--" + key.replace("_", "-") for key in (*values, *wanted)}
    options |= {"rate_rps": "--request-rate", "trace": "--arrivals-from", **OPTIONS}
    options |= {"alpha": "--alpha" if name == "varying" else "--burstiness"}
    for key in sorted(chosen.keys() - wanted):
        taken = ", ".join(options[key] for key in sorted(wanted.keys() - {"workload"}))
        fix = f"leave it out; they take {taken or 'no option'}"
        raise InputError(f"{name} arrivals do not use it", field=options[key], fix=fix)

    for key, parameter in wanted.items():
        if parameter.default is inspect.Parameter.empty and key not in chosen:
            fix = "give it, or choose other --arrivals"
            raise InputError(f"{name} arrivals need it", field=options[key], fix=fix)

    try:
        return ARRIVALS[name](**chosen)
    except InputError as error:
        raise error.at(field=options.get(str(error.field))) from None


def draw_trace(
    requests: Callable[..., pd.DataFrame],
    arrivals: generators.Arrivals,
    *,
    seed: int,
    n: int | None = None,
    duration_s: float | None = None,
) -> pd.DataFrame:
    """Draw requests and their arrivals, in the trace contract's columns.

    `requests` draws as `RequestModel.sample` does. Requests and arrivals have independent streams
    of `seed`. Raises InputError: the arrivals have no end.
    """
    request_seed, arrival_seed = np.random.SeedSequence(seed).spawn(2)
    if n is None and duration_s is None and not arrivals.ends_itself:
        raise InputError("the arrivals have no end", field="-n", fix="give -n or --duration")

    times = arrivals.times(n=n, duration_s=duration_s, seed=arrival_seed)
    drawn = requests(len(times), seed=request_seed)
    ids = [str(number) for number in range(len(times))]
    drawn = drawn.assign(request_id=ids, arrival_s=times.round(9), status="ok")

    return drawn.reindex(columns=list(TRACE_COLUMNS))


def is_service(folder: str | Path) -> bool:
    """Return whether a folder holds ServeGen's tables of clients."""
    return any(Path(folder).glob(_SERVICE_FILES))


def draw_service(
    folder: str | Path, *, seed: int, n: int | None = None, duration_s: float | None = None
) -> pd.DataFrame:
    """Draw the requests of a service by each client's windows, in the trace contract's columns.

    `llm` is the folder's name, `service` the client. There are at most `n` requests, in
    `duration_s` from the tables' start. Raises InputError: no such files, a malformed one, or no
    request in that time.
    """
    folder = Path(folder)
    end_s = math.inf if duration_s is None else duration_s
    if not is_service(folder):
        fix = "give the folder of a service of ServeGen, e.g. data/reason/deepseek-r1"
        raise InputError(f"there is no {_SERVICE_FILES}", file=folder, fix=fix)

    clients = {
        path.name.removesuffix("-trace.csv"): client
        for path in sorted(folder.glob(_SERVICE_FILES))
        if (client := _read_client(path, end_s)) is not None
    }
    if not clients:
        problem = f"no client sends a request in the first {end_s:g} s"
        raise InputError(problem, file=folder, fix="give another time")
    if n is not None and duration_s is None:
        # Draw up to the window by which more than `n` requests are expected: all take long.
        starts, counts = (
            np.concatenate([getattr(client, name) for client in clients.values()])
            for name in ("start_s", "n_requests")
        )
        order = np.argsort(starts)
        index = np.searchsorted(np.cumsum(counts[order]), 2 * n + 100)
        duration_s = float(starts[order][index]) + _WINDOW_S if index < len(order) else None

    parts = []
    for number, (name, client) in enumerate(clients.items()):
        arrival_seed, length_seed = (
            generators.child_seed(seed, 2 * number + stream) for stream in range(2)
        )
        arrival_s = client.times(duration_s=duration_s, seed=arrival_seed)
        rng = np.random.default_rng(length_seed)
        lengths = _draw_lengths(folder / f"{name}-dataset.json", arrival_s, rng)
        parts.append(pd.DataFrame({"arrival_s": arrival_s, "service": name, **lengths}))

    drawn = pd.concat(parts).sort_values("arrival_s", kind="stable", ignore_index=True)[:n]
    ids = [str(number) for number in range(len(drawn))]
    status = np.where(drawn["output_tokens"] > 0, "ok", "failed")
    drawn = drawn.assign(request_id=ids, llm=folder.name, status=status)

    return drawn.reindex(columns=list(TRACE_COLUMNS))


def _read_client(path: Path, end_s: float) -> generators.Mirrored | None:
    """Read the windows of a client that begin before `end_s`; None if it sends no request then."""
    windows: list[tuple[float, float, float, bool]] = []
    fix = "give ServeGen's own files: start, rate, CV, distribution, two parameters"
    with path.open(newline="", encoding="utf-8") as handle:
        for number, row in enumerate(csv.reader(handle), start=1):
            try:
                if len(row) != _N_CELLS:
                    raise ValueError(f"{len(row)} cells, not {_N_CELLS}")
                start_s = float(row[0])
                rate_rps = float(row[1])
                shape = float(row[4])
                family = row[3].lower()
                if not (0 <= start_s < math.inf and 0 <= rate_rps < math.inf):
                    raise ValueError("a start or a rate below 0, or not finite")
                if family not in (*_FAMILIES, "", "nan"):
                    raise ValueError(f"unknown distribution {row[3]!r}")
                if windows and start_s <= windows[-1][0]:
                    raise ValueError("windows do not ascend")
            except ValueError as error:
                raise InputError(str(error), file=path, row=number, fix=fix) from None
            is_known = family in _FAMILIES and shape > 0
            kind = (shape, _FAMILIES[family]) if is_known else (1.0, False)
            windows.append((start_s, rate_rps, *kind))

    starts, rates, shapes, kinds = zip(*windows, strict=True) if windows else ((),) * 4
    lasting_s = np.diff(starts)
    lasting_s = np.append(lasting_s, lasting_s[-1] if len(lasting_s) else _WINDOW_S)
    n_requests = np.multiply(rates, lasting_s).tolist()
    n_kept = int(np.searchsorted(starts, end_s))
    if not any(n_requests[:n_kept]):
        return None

    columns = (starts, lasting_s.tolist(), n_requests, shapes, kinds)

    return generators.Mirrored(*(column[:n_kept] for column in columns))


def _draw_lengths(
    path: Path, arrival_s: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    fix = "give ServeGen's own file: windows with input_tokens and output_tokens, as shares"
    if not path.is_file():
        raise InputError("the client's lengths are missing", file=path, fix=fix)

    drawn = {name: np.zeros(len(arrival_s), np.int32) for name in _LENGTHS}
    try:
        tables = {float(start): shares for start, shares in json.loads(path.read_text()).items()}
        starts = np.array(sorted(tables))
        window = np.searchsorted(starts, arrival_s, side="right") - 1
        for number in np.unique(window):
            is_in_window = window == number
            start = starts[number] if number >= 0 else None
            for name in _LENGTHS:
                shares = ast.literal_eval(tables[start][name]) if start is not None else {}
                if not (shares and min(shares) >= (name == "input_tokens")):
                    raise ValueError(f"no {name} of a request at {arrival_s[is_in_window][0]:g} s")
                if not all(isinstance(length, int) and length <= MAX_INT32 for length in shares):
                    raise ValueError(f"{name} are whole numbers, {MAX_INT32:,} at most")
                weights = np.array([*shares.values()], float)
                if not (weights.min() >= 0 and 0 < weights.sum() < math.inf):
                    raise ValueError(f"the shares of {name} are below 0, all 0, or not finite")
                picked = rng.choice([*shares], is_in_window.sum(), p=weights / weights.sum())
                drawn[name][is_in_window] = picked
    except (ValueError, TypeError, KeyError, SyntaxError, AttributeError) as error:
        problem = f"{type(error).__name__} {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"not a table of lengths ({problem})", file=path, fix=fix) from None

    return drawn


def check_format(form: str, out: str | Path) -> None:
    """Raise InputError if `write_trace` does not know a format."""
    if form not in FORMATS:
        fix = f"end the file in .parquet or .csv, or give --format: {', '.join(FORMATS)}"
        raise InputError(f"{form!r} is not a format", file=out, field="--format", fix=fix)


def write_trace(
    trace: pd.DataFrame, out: str | Path, form: str, origin: Mapping[str, Any] | None = None
) -> None:
    """Write requests, in the order of arrival, in one of `FORMATS` (docs/workloads.md).

    A Parquet file gets `origin` as its provenance. No two requests share a block id, so that no
    prefix cache serves two.
    """
    check_format(form, out)
    if form == "parquet":
        table = pa.Table.from_pandas(trace, pa.schema(TRACE_COLUMNS), preserve_index=False)
        write_parquet(out, table.replace_schema_metadata(None), origin or {})
        return

    with atomic_path(out) as temporary:
        if form == "csv":
            trace.to_csv(temporary, index=False)
            return
        is_mooncake = form == "mooncake"
        block_tokens = MOONCAKE_BLOCK_TOKENS if is_mooncake else VLLM_BLOCK_TOKENS
        # Mooncake's times are whole milliseconds.
        times = [round(1000 * t) if is_mooncake else t for t in trace["arrival_s"].tolist()]
        ends = np.cumsum(-(-trace["input_tokens"].to_numpy() // block_tokens))
        blocks = [range(*pair) for pair in itertools.pairwise([0, *ends.tolist()])]
        inputs, outputs = (trace[name].tolist() for name in _LENGTHS)
        with temporary.open("w", encoding="utf-8") as handle:
            for line in zip(times, inputs, outputs, map(list, blocks), strict=True):
                handle.write(json.dumps(dict(zip(_LINE, line, strict=True))) + "\n")

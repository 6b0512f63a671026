"""What one run of a load tool measured: the type that every reader of results fills in.

`tool_vllm`, `tool_sglang`, `tool_guidellm`, `tool_aiperf`, `tool_genai_bench`,
`tool_inference_perf` and `tool_llmd` read the tools' files into it; `tool_points` makes points of
it. Latencies are in ms, rates per second.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sextant.base.errors import InputError
from sextant.points.frame import STATISTICS

MS_PER = {
    **{"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6},
    **{"ms/token": 1.0, "s/token": 1e3},
}
"""Milliseconds in the units of the tools' files."""
DOUBTS = (
    *("few requests", "failures", "failures not counted", "idle users", "fell behind"),
    *("waits in the client", "bursts", "even arrivals", "interrupted", "cut off", "speculation"),
    *("TPOT left out", "TPOT of a sample", "ITL weighted by tokens", "not streamed"),
    *("shared out", "other load at once"),
)
"""Kinds of doubts; docs/adding.md says when a point has each."""
Content = Mapping[str, Any]


@dataclass(frozen=True)
class Latency:
    """Statistics of one latency in ms; None: the file does not have it."""

    mean: float | None = None
    median: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, block: Content | None, ms: float = 1.0) -> Self:
        """Return the statistics of a block of a file; `ms` are the milliseconds in its unit.

        A block has `mean` or `avg`, `median` or `p50`, and `p90`, `p95`, `p99`.
        """
        names = {"mean": ("mean", "avg"), "median": ("median", "p50")}
        values = {}
        for statistic in STATISTICS:
            keys = names.get(statistic, (statistic,))
            value = next((v for key in keys if (v := (block or {}).get(key)) is not None), None)
            values[statistic] = value if value is None or ms == 1 else value * ms
        return cls(**values)

    @property
    def is_known(self) -> bool:
        """Whether the file has any of the statistics."""
        return any(getattr(self, statistic) is not None for statistic in STATISTICS)


def in_ms(block: Content | None, field_name: str, unit_key: str = "unit") -> Latency:
    """Return the statistics of a block that names its unit. InputError: an unknown unit."""
    if block is None:
        return Latency()
    if (unit := block.get(unit_key)) not in MS_PER:
        problem = f"unknown unit {unit!r}"
        raise InputError(problem, field=field_name, fix=f"one of {', '.join(MS_PER)} is known")
    return Latency.of(block, MS_PER[str(unit)])


@dataclass(frozen=True, kw_only=True)
class RunLoad:
    """How load was put on the server: users, or a rate that was asked for."""

    users: Any = None
    asked_rps: Any = None
    answered_rps: Any = None
    """Requests answered a second."""
    most_in_flight: Any = None
    """Of a rate: the most requests that the client has in flight; others wait in the client."""
    no_level: str | None = None
    """Why the run has neither users nor a rate, e.g. `everything was sent at once`."""


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """What one run of a load tool measured; None: its file does not say.

    Values are as the file has them: `tool_points` checks them.
    """

    load: RunLoad
    latencies: Mapping[str, Latency]
    """By metric: `ttft`, `itl`, `tpot`, `e2e`."""
    n_ok: Any
    n_failed: Any
    input_tokens: Any = None
    output_tokens: Any = None
    throughput_tok_s: Any = None
    llm: Any = None
    tool_version: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    cuda_graphs: bool | None = None
    """Whether the engine used its CUDA graphs."""
    day: tuple[str, Any] = ("date", None)
    """Field and value of the date of the run."""
    doubts: tuple[str, ...] = ()
    """Why the run is doubtful, as far as only the tool's file tells: `kind (detail)`."""


@dataclass(frozen=True)
class ResultFile:
    """One result of a file: its content, and the files beside it."""

    path: Path
    content: Any
    beside: Callable[[str], Content] = field(default=lambda name: {})
    """Returns the content of another file in the same folder, empty if there is none."""


@dataclass(frozen=True)
class LoadTool:
    """How results of a load tool are read."""

    file: str
    """What to give, e.g. `guidellm's benchmarks.json`."""
    marks: tuple[frozenset[str], ...]
    """Sets of keys; a result has all keys of one set at its top."""
    read: Callable[[ResultFile], Iterator[ToolRun]]

    def is_of(self, content: Any) -> bool:
        """Return whether a content looks like a result of this tool."""
        return isinstance(content, Mapping) and any(mark <= content.keys() for mark in self.marks)


def arrival_doubts(kind: str | None, shape: float | None = None) -> tuple[str, ...]:
    """Return what is doubtful about arrivals; nothing about those at random (Poisson).

    Args:
        kind: `poisson`, `gamma` or `constant`; None: not known.
        shape: of Gamma gaps, 1 is Poisson.
    """
    if kind == "constant":
        return ("even arrivals (requests at random wait longer)",)
    if isinstance(shape, int | float) and shape != 1:
        return (f"{'bursts' if shape < 1 else 'even arrivals'} (gaps of shape {shape:g})",)
    return ()


def speculation_doubts(tokens_per_step: Any) -> tuple[str, ...]:
    """Return that a server drafted tokens, of which so many came in a step."""
    if isinstance(tokens_per_step, int | float) and tokens_per_step > 1:
        return (f"speculation ({tokens_per_step:.3g} tokens a step)",)
    return ()


def cut_doubts(n_unfinished: Any, n_all: Any) -> tuple[str, ...]:
    """Return that many requests had not ended when the run did: the long ones are missing."""
    if isinstance(n_unfinished, int | float) and n_all and n_unfinished > 0.1 * n_all:
        return (f"cut off ({n_unfinished:g} of {n_all:g} requests had not ended)",)
    return ()


def day_of(seconds: Any) -> Any:
    """Return the date-time of seconds since 1970; a value that is none as it is."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (TypeError, ValueError, ArithmeticError, OSError):
        return seconds


def only_value(config: Any, name: str) -> Any:
    """Return a key's one value at any depth, None without; InputError for several."""
    values: list[Any] = []

    def visit(part: Any) -> None:
        if isinstance(part, Mapping):
            if isinstance(part.get(name), str | int | float | list) and part[name] not in values:
                values.append(part[name])
            part = list(part.values())
        for item in part if isinstance(part, list) else ():
            visit(item)

    visit(config)
    if len(values) > 1:
        fix = "give a result of a single phase"
        raise InputError(f"several values of {name}: {values[:3]}", field=name, fix=fix)
    return values[0] if values else None

"""The content of `run.json`: how a cell was measured, and the outcome."""

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import AllowInfNan, BeforeValidator, NonNegativeFloat, NonNegativeInt, PlainSerializer

from sextant.experiment.scenarios import KINDS, level_to_json
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey
from sextant.points.verdict import STRICT, Verdict

CELL_KEY = ("source", *(part.name for part in fields(CellKey)))
"""The ids that name a cell, in `run.json` and in every row of the store."""


def _level(value: Any) -> Any:
    level = math.inf if value == "inf" else value
    if isinstance(level, int | float) and not (0 < level < 2**31 or level == math.inf):
        raise ValueError("a level is above 0 and below 2**31, or inf")
    return level


Level = Annotated[
    float,
    AllowInfNan(True),
    BeforeValidator(_level),
    PlainSerializer(level_to_json, return_type=Any),
]
"""Users, requests per second, requests in flight or a phase; all at once is `inf` in JSON."""


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a delay, in ms; None: unknown."""

    median: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class PublishedMedians:
    """Medians that a source published without the requests behind them."""

    median_nttft_ms: float
    median_itl_ms: float


@dataclass(frozen=True)
class LevelMedians:
    """Medians that the stop rule compares; a latency is None where no request was served."""

    users: float
    n_ok: int
    nttft_ms: float | None
    itl_ms: float | None


@dataclass(frozen=True)
class EarlyStop:
    """Why a sweep ended early: both medians were far beyond limits; more users wait longer."""

    last: LevelMedians  # medians of the largest measured level; neither is None
    nttft_limit_ms: float
    itl_limit_ms: float
    factor: float  # how far beyond both limits

    @property
    def reason(self) -> str:
        """The reason as a sentence."""
        return (
            f"left out: at {self.last.users:g} users the median nTTFT is "
            f"{self.last.nttft_ms:.3g} ms and the median ITL {self.last.itl_ms:.3g} ms "
            f"({self.last.n_ok} requests), both more than {self.factor:g} times their limits of "
            f"{self.nttft_limit_ms:g} and {self.itl_limit_ms:g} ms"
        )


@dataclass(frozen=True)
class ClientReport:
    """How punctual the load client was, and what is odd in the answers that it received."""

    client_lag_ms: Quantiles = Quantiles()  # lateness of the client's event loop
    send_lag_ms: Quantiles = Quantiles()  # time from when a request was due until it was sent
    lag_warning: str | None = None  # the lag may have shaped the result
    answer_warnings: tuple[str, ...] = ()  # why figures of the answers may be inexact

    @property
    def warnings(self) -> tuple[str, ...]:
        """All warnings, of the lag and of the answers."""
        return (*filter(None, [self.lag_warning]), *self.answer_warnings)


@dataclass(frozen=True)
class ServerReport:
    """What the server and its devices say of a level; None where they do not."""

    server_mean_itl_ms: float | None = None  # by the server's own histogram
    server_accepted_length: float | None = None  # tokens of a step that verified a draft
    telemetry_warnings: tuple[str, ...] = ()
    n_other_processes: int | None = None  # on the servers' GPUs, the most that were seen


@dataclass(frozen=True)
class LevelConditions:
    """By which client, against which engine and with which clock a level was measured."""

    host: str | None = None  # name of the client's machine
    engine_version: str | None = None
    timeout_s: float | None = None  # time limit of a request
    times_since: datetime | None = None  # the moment from which the level's times count


@dataclass(frozen=True)
class LevelRun:
    """A measured level. Times are seconds since `conditions.times_since`; None is unknown."""

    level: Level
    started_s: float | None = None
    duration_s: NonNegativeFloat | None = None  # of the measured part, to the last end
    n_warmup_requests: NonNegativeInt | None = None
    n_cooldown_requests: NonNegativeInt | None = None
    n_prepared_late: NonNegativeInt | None = None  # requests encoded while one was due
    n_unfinished: NonNegativeInt = 0  # in flight when the level was interrupted; without a row
    sessions: Mapping[str, NonNegativeInt] | None = None
    """Counts of a replay that follows sessions: `n_sessions`; `n_turns`, the turns that waited for
    an answer; `n_not_sent`, the turns left out because an earlier turn failed."""
    client: ClientReport = ClientReport()
    server_report: ServerReport = ServerReport()
    conditions: LevelConditions = LevelConditions()
    medians: LevelMedians | None = None  # of a closed loop
    phase: Mapping[str, Any] | None = None  # of a burst; see `sextant.bench.burst.run_phases`
    published_medians: PublishedMedians | None = None

    def with_conditions(
        self, *, engine_version: str | None, timeout_s: float | None, times_since: datetime
    ) -> "LevelRun":
        """Return the level with these conditions; its host stays."""
        conditions = replace(
            self.conditions,
            engine_version=engine_version,
            timeout_s=timeout_s,
            times_since=times_since,
        )
        return replace(self, conditions=conditions)

    @property
    def ended_s(self) -> float | None:
        """End of the measured part."""
        if self.started_s is None or self.duration_s is None:
            return None
        return self.started_s + self.duration_s


@dataclass(frozen=True)
class LeftOut:
    """Levels that were not measured, and why."""

    levels: tuple[Level, ...]
    stop: EarlyStop

    def __str__(self) -> str:
        """The levels and the reason, for a person."""
        return f"{', '.join(f'{level:g}' for level in self.levels)}: {self.stop.reason}"


@dataclass(frozen=True)
class ServerFacts:
    """The server; None is unknown."""

    engine: str | None  # name of the engine, e.g. `vllm`
    version: str | None
    precision: str | None = None  # type of the weights as served
    command: tuple[str, ...] | None = None  # None: somebody else started it
    url: str | None = None  # of a server that somebody else started
    start_duration_s: float | None = None
    devices: tuple[tuple[int | str, ...], ...] = ()  # one tuple per replica
    batch_weight_tokens: int | None = None


@dataclass(frozen=True)
class HostGPU:
    """A GPU of a machine, by NVML; None where it does not say."""

    name: str | None
    is_mig_enabled: bool | None = None


@dataclass(frozen=True)
class HostFacts:
    """What identifies the machine of a measurement; None where it does not say."""

    name: str | None = None
    system: str | None = None
    processor: str | None = None
    python: str | None = None
    gpu_driver: str | None = None
    cuda_version: str | None = None  # the newest that the driver supports
    gpus: tuple[HostGPU, ...] | None = None  # by NVML index
    is_mps_running: bool | None = None


@dataclass(frozen=True)
class SentRequests:
    """How the requests of a cell were made."""

    seed: int | None = None
    sampler: str | None = None  # how requests are drawn from a workload, e.g. `joint`
    prompts: str | None = None  # what the prompts are made of
    unsent_parameters: tuple[str, ...] | None = None  # parameters that no request carried


@dataclass(frozen=True)
class CellOrigin:
    """When, where and from which definition a cell was measured."""

    started_at: datetime | None = None
    host: HostFacts | None = None
    definition: Mapping[str, Any] | None = None  # `cell_definition`; None for an ad hoc run
    definition_sha256: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CellRun:
    """One measurement of a cell, or why there is none. None is unknown, e.g. of an archive."""

    __pydantic_config__: ClassVar = STRICT

    source: str
    key: CellKey
    scenario: Mapping[str, Any]  # `kind`, and the fields of this kind
    variant: Variant
    verdict: Verdict
    batch_weight_tokens: int | None = None
    server: ServerFacts | None = None  # None: no server was started, or nothing is known of it
    requests: SentRequests = SentRequests()
    levels: tuple[LevelRun, ...] = ()
    left_out: LeftOut | None = None
    is_complete: bool = True  # False: interrupted; `levels` has the levels that ended before
    interruption: str | None = None  # what interrupted it
    origin: CellOrigin = CellOrigin()

    def __post_init__(self) -> None:
        kind = self.scenario.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ValueError(f"the scenario has no kind of {', '.join(KINDS)}")

    @property
    def scenario_kind(self) -> str:
        """`closed_loop`, `open_loop`, `batch` or `burst`."""
        return str(self.scenario["kind"])

    @property
    def engine(self) -> str | None:
        """Name and version of the engine."""
        words = (self.server.engine, self.server.version) if self.server else ()
        return " ".join(filter(None, words)) or None

    @property
    def engine_version(self) -> str | None:
        """Version of the engine."""
        return self.server.version if self.server else None

    @property
    def measured_on(self) -> str | None:
        """The day of the measurement, `YYYY-MM-DD`."""
        started_at = self.origin.started_at
        return f"{started_at:%Y-%m-%d}" if started_at else None

    @property
    def ids(self) -> tuple[str, ...]:
        """The values of `CELL_KEY`."""
        return (self.source, *astuple(self.key))


GROUPS: Mapping[type, Mapping[str, type]] = {
    CellRun: {"key": CellKey, "requests": SentRequests, "origin": CellOrigin},
    LevelRun: {
        "client": ClientReport,
        "server_report": ServerReport,
        "conditions": LevelConditions,
    },
}
"""Groups of fields that a file has one by one, in the place of the group.

`run.json` stays flat: `cell_files` writes and reads a field of a group without the group's name.
"""

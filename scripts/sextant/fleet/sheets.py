"""The sheets of demands and supply: what teams want served, and the nodes there are.

A trace counts by the mean rate of its busiest hour: bursts within that hour are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.base.sheets import Row, file_name, load_sheet
from sextant.decide.fleet import FleetDemand, GPUPool
from sextant.experiment.sheets import DemandRow, SupplyRow
from sextant.facts.gpu import GPU, GPUS, GPUProfile, is_slice, load_gpu, mig_slice
from sextant.facts.llm import name_of
from sextant.facts.slo import SLO
from sextant.points.frame import LENGTHS
from sextant.workload.lengths import Length, RequestLengths, parse_lengths
from sextant.workload.profiles import HOUR_S, traffic_series

_OPTIONAL = ("priority", "least_replicas")
_NOT_OF_SLO = {
    *("demand_id", "team", "llm_id", "hf_config", "trace_id"),
    *_OPTIONAL,
    *LENGTHS,
}
_POOL_COLUMNS = (
    *("pool_id", "nodes", "devices_per_node", "usd_per_hour"),
    *("price_source", "price_as_of"),
)
_LEAST_HOURS = 24  # A trace with fewer whole hours may lack the busiest hour of a day.
_TRACE_NOTE = "its busiest hour has its mean rate; `sextant capacity` simulates bursts within it."
_RATE_NOTE = (
    "the rate is taken as a steady load; requests that arrive at random may need more replicas: "
    "`sextant capacity` simulates them."
)
_MOST_GPUS = 8  # Most devices of a replica: no more were measured anywhere.


@dataclass(frozen=True)
class SheetDemand:
    """A row of the sheet of demands."""

    demand: FleetDemand
    hf_config: Path | None
    requests: RequestLengths | None  #: None: the lengths of the characterization.
    line: int  #: Of the sheet.
    notes: tuple[str, ...]

    def question(self, base: Question) -> Question:
        """Return the question of the demand; `base` has the measurements to use and the seed."""
        return replace(
            base,
            slo=self.demand.slo,
            llm_id=self.demand.llm_id if self.hf_config is None else None,
            hf_config=self.hf_config,
            requests=self.requests,
        )


def read_supply(path: Path, folder: Path = GPUS) -> tuple[list[GPUPool], dict[str, GPU]]:
    """Return the pools, and the facts of their devices; MIG slices have `gpu_id`s of their own.
    Raises InputError: a row is wrong, a GPU has no facts, or the sheet has no node."""
    pools = []
    gpus: dict[str, GPU] = {}
    for row in load_sheet(path, SupplyRow, "pool_id"):
        gpu = _gpu_of(row, folder)
        gpus[gpu.gpu_id] = gpu
        columns = {name: row[name] for name in _POOL_COLUMNS if name in row}
        pools.append(GPUPool(gpu_id=gpu.gpu_id, is_owned=row["kind"] == "owned", **columns))

    if not sum(pool.nodes for pool in pools):
        raise InputError("there is no node", file=path, field="nodes", fix="give at least one")
    return pools, gpus


def _gpu_of(row: Row, folder: Path) -> GPU:
    """Return the facts of the devices of a pool. Raises InputError: unknown GPU or MIG profile."""
    try:
        gpu = load_gpu(folder, row["gpu_id"])
    except InputError as error:
        gpu_ids = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        fix = f"use one of {gpu_ids}, or write its facts into {folder}"
        raise row.error(error.problem, "gpu_id", fix) from None

    if "mig_profile" not in row:
        return gpu
    try:
        return mig_slice(gpu, row["mig_profile"])
    except InputError as error:
        raise error.at(file=row.file, row=row.line) from None


def candidate_profiles(pools: Sequence[GPUPool], gpus: Mapping[str, GPU]) -> dict[str, GPUProfile]:
    """Return the profiles that nodes have room for: 1, 2, 4 … devices, at the lowest price. Slices
    of a GPU serve alone: they have no connection among each other."""
    profiles = {}
    for gpu_id, gpu in gpus.items():
        pools_of_gpu = [pool for pool in pools if pool.gpu_id == gpu_id]
        most_gpus = 1
        if not is_slice(gpu_id):
            most_gpus = min(max(pool.devices_per_node for pool in pools_of_gpu), _MOST_GPUS)

        usd_per_hour = min(pool.usd_per_hour for pool in pools_of_gpu)
        for n_gpus in (2**power for power in range(most_gpus.bit_length())):
            name = f"{n_gpus}x{gpu_id}"
            profiles[name] = GPUProfile(name, gpu, n_gpus, n_gpus * usd_per_hour)
    return profiles


def read_demands(path: Path, traces: Path) -> list[SheetDemand]:
    """Return the rows of the sheet; a row's trace is `<trace_id>.parquet` in the folder `traces`.
    Raises InputError: a row is wrong or contradicts itself, or a trace cannot be read."""
    demands = []
    for row in load_sheet(path, DemandRow, "demand_id"):
        try:
            demands.append(_demand_of(row, traces))
        except InputError as error:
            raise error.at(file=path, row=row.line) from None
    return demands


def _demand_of(row: Row, traces: Path) -> SheetDemand:
    """Return the demand of a row. Raises InputError: the row contradicts itself."""
    if ("llm_id" in row) == ("hf_config" in row):
        fix = "give the one or the other"
        raise InputError("one LLM is needed", field="llm_id, hf_config", fix=fix)
    hf_config = Path(row["hf_config"]) if "hf_config" in row else None
    limits = {name: value for name, value in row.items() if name not in _NOT_OF_SLO}

    requests = _lengths_of(row)
    notes: list[str] = []
    if "trace_id" in row:
        trace = traces / f"{file_name(row['trace_id'])}.parquet"
        if not trace.is_file():
            fix = f"ingest it to {trace} (`sextant ingest`), or name its folder (--traces)"
            raise InputError(f"{trace} does not exist", field="trace_id", fix=fix)
        requests = requests or parse_lengths(None, None, str(trace))
        if not {"users", "request_rate_rps"} & limits.keys():
            limits["request_rate_rps"], notes = _busiest_hour(trace)

    slo = SLO(row["demand_id"], **limits)
    if slo.request_rate_rps is not None:
        notes.append(_TRACE_NOTE if "trace_id" in row else _RATE_NOTE)

    demand = FleetDemand(
        demand_id=row["demand_id"],
        team=row["team"],
        llm_id=row["llm_id"] if hf_config is None else name_of(hf_config),
        slo=slo,
        **{name: row[name] for name in _OPTIONAL if name in row},
    )
    return SheetDemand(demand, hf_config, requests, row.line, tuple(notes))


def _lengths_of(row: Row) -> RequestLengths | None:
    """Return the lengths that a row states. Raises InputError where it states only one."""
    lengths = [Length(float(row[name]), float(row[name])) for name in LENGTHS if name in row]
    if len(lengths) == 1:
        fix = "give both, or neither"
        raise InputError("one length alone is given", field=", ".join(LENGTHS), fix=fix)
    return RequestLengths(*lengths) if lengths else None


def _busiest_hour(trace: Path) -> tuple[float, list[str]]:
    """Return the rate of the busiest whole hour in requests/s, and notes; without a whole hour, the
    mean rate of its minutes."""
    hours = traffic_series(trace, HOUR_S, by=())
    n_requests = hours[hours["is_whole"]]["n_requests"]

    notes = []
    if len(n_requests) < _LEAST_HOURS:
        notes.append(f"{trace.stem} has less than 24 whole hours, maybe not the busiest.")

    if n_requests.empty:
        minutes = traffic_series(trace, 60.0, by=())["n_requests"]
        return float(minutes.mean() / 60.0), notes
    return float(n_requests.max() / HOUR_S), notes

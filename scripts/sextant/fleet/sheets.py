"""The sheets of demands and supply: what teams want served, and the nodes there are.

A trace counts by the mean rate of its busiest hour: bursts within that hour are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.base.sheets import file_name, load_sheet
from sextant.decide.fleet import FleetDemand, GPUPool
from sextant.experiment.sheets import DemandRow, SupplyRow
from sextant.facts.gpu import GPU, GPUS, GPUProfile, is_slice, load_gpu, mig_slice
from sextant.facts.llm import name_of
from sextant.facts.slo import SLO, Limits
from sextant.points.frame import LENGTHS
from sextant.trace.choice import TraceChoice, chosen_requests, mixture_notes
from sextant.workload.length_options import parse_lengths
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.profiles import HOUR_S, traffic_series

_LEAST_HOURS = 24  # A trace with fewer whole hours may lack the busiest hour of a day.
_TRACE_NOTE = "its busiest hour has its mean rate; `sextant capacity` simulates bursts within it."


@dataclass(frozen=True)
class SheetDemand:
    """A row of the sheet of demands."""

    demand: FleetDemand
    hf_config: Path | None
    requests: RequestLengths | None  #: None: the lengths of the characterization.
    workload: str | None  #: The trace that `requests` come from.
    line: int  #: Of the sheet.
    notes: tuple[str, ...]

    @classmethod
    def of_row(cls, row: DemandRow, line: int, traces: Path) -> Self:
        """Return the demand of a row; its trace is `<trace_id>.parquet` in the folder `traces`.
        Raises InputError: the row contradicts itself, or its trace cannot be read."""
        hf_config = Path(row.hf_config) if row.hf_config is not None else None
        llm_id = row.llm_id if hf_config is None else name_of(hf_config)
        if llm_id is None or (hf_config is not None and row.llm_id is not None):
            fix = "give the one or the other"
            raise InputError("one LLM is needed", field="llm_id, hf_config", fix=fix)

        requests = workload = None
        if (row.input_tokens is None) != (row.output_tokens is None):
            fix = "give both, or neither"
            raise InputError("one length alone is given", field=", ".join(LENGTHS), fix=fix)
        if row.input_tokens is not None and row.output_tokens is not None:
            requests = RequestLengths(
                Length(row.input_tokens, row.input_tokens),
                Length(row.output_tokens, row.output_tokens),
            )

        rate_rps = row.request_rate_rps
        notes: list[str] = []
        if row.trace_id is not None:
            trace = traces / f"{file_name(row.trace_id)}.parquet"
            if not trace.is_file():
                fix = f"ingest it to {trace} (`sextant ingest`), or name its folder (--traces)"
                raise InputError(f"{trace} does not exist", field="trace_id", fix=fix)
            choice = TraceChoice(row.llm, row.service)
            with chosen_requests(trace, choice) as part:
                if requests is None:
                    workload = str(trace)
                    requests = parse_lengths(None, None, str(part))
                if row.users is None and rate_rps is None:
                    rate_rps, notes = _busiest_hour(part)
            notes += mixture_notes(trace, choice)
        elif row.llm is not None or row.service is not None:
            fix = "leave it empty, or give trace_id"
            field = "service" if row.llm is None else "llm"
            raise InputError("only a trace has LLMs and services", field=field, fix=fix)

        limits = {field.name: getattr(row, field.name) for field in fields(Limits)}
        limits |= {"request_rate_rps": rate_rps} | dict.fromkeys(LENGTHS)
        slo = SLO(row.demand_id, **limits)
        if slo.request_rate_rps is not None and row.trace_id is not None:
            notes.append(_TRACE_NOTE)

        demand = FleetDemand(
            demand_id=row.demand_id,
            team=row.team,
            llm_id=llm_id,
            slo=slo,
            priority=row.priority or 1,
            least_replicas=row.least_replicas or 1,
        )
        return cls(demand, hf_config, requests, workload, line, tuple(notes))

    def question(self, base: Question) -> Question:
        """Return the question of the demand; `base` has the measurements to use and the seed."""
        return replace(
            base,
            slo=self.demand.slo,
            llm_id=self.demand.llm_id if self.hf_config is None else None,
            hf_config=self.hf_config,
            requests=self.requests,
            workload=self.workload,
        )


def read_supply(path: Path, folder: Path = GPUS) -> tuple[list[GPUPool], dict[str, GPU]]:
    """Return the pools, and the facts of their devices; MIG slices have `gpu_id`s of their own.
    Raises InputError: a row is wrong, a GPU has no facts, or the sheet has no node."""
    pools = []
    gpus: dict[str, GPU] = {}
    for cells in load_sheet(path, SupplyRow, "pool_id"):
        row = SupplyRow(**cells)
        try:
            gpu = load_gpu(folder, row.gpu_id)
        except InputError as error:
            gpu_ids = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
            fix = f"use one of {gpu_ids}, or write its facts into {folder}"
            raise cells.error(error.problem, "gpu_id", fix) from None
        if row.mig_profile is not None:
            try:
                gpu = mig_slice(gpu, row.mig_profile)
            except InputError as error:
                raise error.at(file=path, row=cells.line) from None

        gpus[gpu.gpu_id] = gpu
        pools.append(
            GPUPool(
                pool_id=row.pool_id,
                gpu_id=gpu.gpu_id,
                nodes=row.nodes,
                devices_per_node=row.devices_per_node,
                usd_per_hour=row.usd_per_hour,
                is_owned=row.kind == "owned",
                price_source=row.price_source,
                price_as_of=row.price_as_of,
            )
        )

    if not sum(pool.nodes for pool in pools):
        raise InputError("there is no node", file=path, field="nodes", fix="give at least one")
    return pools, gpus


def candidate_profiles(pools: Sequence[GPUPool], gpus: Mapping[str, GPU]) -> dict[str, GPUProfile]:
    """Return the profiles that nodes have room for: 1, 2, 4 … devices, at the lowest price. Slices
    of a GPU serve alone: they have no connection among each other."""
    profiles = {}
    for gpu_id, gpu in gpus.items():
        pools_of_gpu = [pool for pool in pools if pool.gpu_id == gpu_id]
        most_gpus = 1
        if not is_slice(gpu_id):
            largest_node = max(pool.devices_per_node for pool in pools_of_gpu)
            most_gpus = min(largest_node, gpu.n_gpus_per_node)

        usd_per_hour = min(pool.usd_per_hour for pool in pools_of_gpu)
        for n_gpus in (2**power for power in range(most_gpus.bit_length())):
            name = f"{n_gpus}x{gpu_id}"
            profiles[name] = GPUProfile(name, gpu, n_gpus, n_gpus * usd_per_hour)
    return profiles


def read_demands(path: Path, traces: Path) -> list[SheetDemand]:
    """Return the rows of the sheet (`SheetDemand.of_row`). Raises InputError: a row is wrong."""
    demands = []
    for cells in load_sheet(path, DemandRow, "demand_id"):
        try:
            demands.append(SheetDemand.of_row(DemandRow(**cells), cells.line, traces))
        except InputError as error:
            raise error.at(file=path, row=cells.line) from None
    return demands


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

"""Measures one cell: feasibility, batch weight, then every level of the scenario."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.job_log import Progress, job_log
from sextant.base.scratch import cell_lock, scratch_folder
from sextant.base.whole_files import remove, settle
from sextant.bench import tuning
from sextant.bench.measurement import Cell, Checkpoint, Measurement, cell_from_definition
from sextant.bench.tuning import ProbeRecord, WeightRange, possible_gain, tune_and_load
from sextant.engine.device_locks import device_locks
from sextant.engine.devices import hardware, hardware_of, pick_cores, pick_devices
from sextant.engine.protocol import RunningServer, ServerSpec
from sextant.engine.registry import ENGINES
from sextant.experiment.current import (
    MEASURE_STALE_CELLS,
    Comparison,
    compare_cell,
    is_workload_of,
)
from sextant.experiment.servers import EngineSettings, engine_settings, load_endpoints
from sextant.facts.engine import memory_of
from sextant.facts.llm import LLM, load_llm
from sextant.points.cell_files import (
    CHECKPOINT,
    damaged_files,
    read_cell,
    write_receipt,
)
from sextant.points.verdict import Feasibility, assess_variant
from sextant.workload.prompts import RandomTokens

log = logging.getLogger(__name__)
Measure = Callable[[Cell, EngineSettings, Path, Progress], None]
"""Makes the files of a cell in a folder."""
# Room for the results of a cell; a run that ends for want of it would lose its GPU time.
_FREE_DISK_BYTES = 64 * 2**20


def measure_cell(
    cell: Cell, settings: EngineSettings, folder: Path, server_log: Path, progress: Progress
) -> None:
    """Measure a cell and write its files to its folder; an infeasible cell is a result too. It goes
    on from what `partial/` keeps. ServerError: a server failed for another reason than memory;
    InputError: the longest request, devices or disk do not fit, or a server is silent."""
    longest_tokens = cell.longest_request_tokens
    # What counts is the type that is served, not the one the weights were published in.
    llm = load_llm(cell.config_path, settings.dtype)
    if longest_tokens > llm.context_tokens:
        fix = "lower max_input_tokens or max_output_tokens of the workload"
        problem = f"requests of {longest_tokens} tokens exceed {llm.context_tokens} of context"
        raise InputError(problem, field=cell.key.llm_id, fix=fix)
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < _FREE_DISK_BYTES:
        problem = f"{free >> 20} MiB of disk are free, {_FREE_DISK_BYTES >> 20} needed"
        raise InputError(problem, file=folder, fix="free some space and run again")
    # The scratch folder first: its caretaker removes the lock too if this job is killed.
    with scratch_folder(folder) as scratch, cell_lock(folder), ExitStack() as stack:
        settle(folder)
        former = reusable_results(cell, folder)
        if former is not None and former.is_current:
            log.info("this cell is measured already: its results are taken over")
            return
        for path in folder.rglob(".*.partial*"):  # what a job left that was killed with its node
            remove(path)
        engine = ENGINES[settings.name]
        feasibility = None
        specs = list[ServerSpec]()
        if engine.starts_servers:
            share = settings.memory_utilization
            feasibility = assess_variant(llm, cell.devices, cell.variant, share, longest_tokens)
        if feasibility and feasibility.is_feasible:
            if cell.model:
                model = Path(cell.model)
            else:
                model = stack.enter_context(model_folder(cell.config_path, scratch))
            specs = server_specs(cell, llm, model, scratch, longest_tokens)
        devices = sorted({device for spec in specs for device in spec.device_indices}, key=str)
        machine = hardware(cell.devices.kind if specs else "cpu", devices)
        stack.enter_context(device_locks(cell.devices.kind, devices))
        kept = Checkpoint(folder / CHECKPOINT, cell.level_sha256, machine)
        title = f"{cell.key.llm_id} on {cell.key.gpu_profile_id}"
        probes = ProbeRecord(kept.folder / "probes.jsonl", [cell.level_sha256, machine], title)
        if former is not None:
            keep_former_levels(folder, kept, probes)
        measurement = Measurement(cell, settings, kept, progress, llm.vocab_size)
        if specs or feasibility is None:
            measurement.read_workload()
        if feasibility is None:
            measurement.run(stack.enter_context(engine.serve((), settings, server_log)))
        elif specs:
            _tune_and_load(measurement, probes, server_log, specs, llm, feasibility)
        measurement.write_results(folder, feasibility)


def reusable_results(cell: Cell, folder: Path) -> Comparison | None:
    """Return which levels the results in a folder lack; None: no whole ones of this definition."""
    compared = compare_cell(folder, cell.definition, cell.workload_path)
    if compared is None or compared.changes or damaged_files(folder):
        return None
    return compared


def keep_former_levels(folder: Path, kept: Checkpoint, probes: ProbeRecord) -> None:
    """Keep the levels and server starts of reusable results, if they are of this hardware."""
    former = read_cell(folder)
    if hardware_of(former.run) == kept.hardware:
        kept.take_over(former)
        if not probes.probes:
            probes.take_over(former.tuning.probes or ())


def _tune_and_load(
    measurement: Measurement,
    probes: ProbeRecord,
    server_log: Path,
    specs: Sequence[ServerSpec],
    llm: LLM,
    feasibility: Feasibility,
) -> None:
    """Search the batch weight; measure on the servers that passed the last probe."""
    cell = measurement.cell
    settings = measurement.settings
    caps = {"input_tokens": cell.max_input_tokens, "output_tokens": cell.max_output_tokens}
    inputs, outputs = (tuning.probe_lengths(measurement.model, *cap) for cap in caps.items())

    def start(weight: int) -> AbstractContextManager[Sequence[RunningServer]]:
        number = len(probes.probes) + 1
        measurement.progress.note(
            f"server start {number} of at most {settings.max_server_starts}, for {weight:,} tokens "
            "of requests in flight"
        )
        weighed = [replace(spec, batch_weight_tokens=weight) for spec in specs]
        return ENGINES[settings.name].serve(weighed, settings, server_log)

    def check(servers: Sequence[RunningServer], weight: int) -> None:
        cases = tuning.corner_cases(weight, inputs, outputs, settings.max_num_seqs)
        prompts = RandomTokens(llm.vocab_size)
        timeout_s = settings.request_timeout_s
        tuning.check_corner_cases(servers, cases, prompts, cell.seed, timeout_s)

    variant = cell.variant
    stated_tokens = variant.batch_weight_tokens
    # Replicas that share a device fill it together.
    n_sharing = variant.replicas if variant.placement == "shared" else 1
    n_devices = 1 if cell.devices.kind == "cpu" else cell.devices.n_gpus
    limits = WeightRange(
        lowest_tokens=stated_tokens or cell.longest_request_tokens,
        highest_tokens=stated_tokens or feasibility.max_batch_weight_tokens,
        kv_bytes_per_token=n_sharing * _kv_bytes_per_token(cell, llm) / n_devices,
        max_starts=settings.max_server_starts,
    )
    if tune_and_load(limits, probes, start, check, measurement.run) is None:
        measurement.levels, measurement.server = [], None  # they ran out of memory after all
    measurement.probes = probes.probes
    measurement.possible_gain = possible_gain(probes.probes, limits)


def _kv_bytes_per_token(cell: Cell, llm: LLM) -> float:
    """Return what a token of the longest request takes on all devices together."""
    n = cell.longest_request_tokens
    return memory_of(llm, cell.devices).request_bytes(n) / n


def server_specs(
    cell: Cell, llm: LLM, model: Path, scratch: Path, batch_weight_tokens: int
) -> list[ServerSpec]:
    """Return what the servers of a cell are, one a replica."""
    variant = cell.variant
    replicas = variant.replicas
    devices = pick_devices(cell.devices, replicas, variant.placement)
    cores: list[tuple[int, ...] | None] = [None] * replicas
    if variant.cpu_cores:
        cores = [*pick_cores(variant.cpu_cores, replicas, variant.placement)]
    return [
        ServerSpec(
            model=model,
            load_format="safetensors" if cell.model else "dummy",
            devices=cell.devices,
            batch_weight_tokens=batch_weight_tokens,
            kv_bytes_per_token=round(_kv_bytes_per_token(cell, llm)),
            max_request_tokens=cell.longest_request_tokens,
            device_indices=indices,
            cpu_indices=cpu_indices,
            memory_share=variant.memory_share,
            memory_limit_gib=variant.memory_limit_gib,
            seed=cell.seed,
            scratch=scratch,
        )
        for indices, cpu_indices in zip(devices, cores, strict=True)
    ]


@contextmanager
def model_folder(config_path: Path, scratch: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder with the LLM's `config.json`, for servers with random weights."""
    with tempfile.TemporaryDirectory(prefix="sextant-model-", dir=scratch) as folder:
        shutil.copy(config_path, Path(folder) / "config.json")
        yield Path(folder)


def run_job(
    definition: Mapping[str, Any],
    config: Mapping[str, Any],
    workload: str,
    receipt: str,
    logs: Mapping[str, str],
    measure: Measure | None = None,
) -> None:
    """Measure the cell that `definition` describes into the folder of its receipt.

    `measure` takes the place of `measure_cell`. Results that are whole and of this definition are
    taken over. InputError: the workload was made by another definition.
    """
    with job_log(logs["job"]):
        if is_workload_of(Path(workload).parent, definition) is False:
            problem = "was made by other settings than the sheets give"
            raise InputError(problem, file=workload, fix=MEASURE_STALE_CELLS)
        cell = cell_from_definition(definition, workload)

        # Not by the definition, which holds no name of a key.
        llm_id = cell.key.llm_id
        gpu_profile_id = cell.key.gpu_profile_id
        endpoints = load_endpoints(config.get("sheets", {}).get("endpoints"))
        settings = engine_settings(config, endpoints.get((llm_id, gpu_profile_id)))
        progress = Progress(f"{llm_id} on {gpu_profile_id}", len(cell.scenario.levels))
        folder = Path(receipt).parent
        try:
            if measure is not None:
                measure(cell, settings, folder, progress)
            else:
                measure_cell(cell, settings, folder, Path(logs["server"]), progress)
        finally:
            progress.close()
        write_receipt(Path(receipt), cell.definition_sha256)

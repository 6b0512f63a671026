"""Measures one cell: feasibility, batch weight, then every level of the scenario."""

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from sextant.benchmark.batch_weight import Probe, corner_cases, next_weight
from sextant.benchmark.definition import Cell, CellOutputs
from sextant.benchmark.host import host_facts
from sextant.engine.devices import pick_devices
from sextant.engine.vllm import (
    EngineSettings,
    Server,
    ServerError,
    ServerSpec,
    model_folder,
)
from sextant.errors import InputError
from sextant.files import provenance, write_json, write_parquet
from sextant.llm import load_llm
from sextant.load import server_metrics, telemetry
from sextant.load.batch import run_batch
from sextant.load.client import Target
from sextant.load.closed_loop import run_closed_loop
from sextant.load.level import REQUEST_SCHEMA
from sextant.load.run import LEVEL_SEED_STRIDE
from sextant.load.source import RequestSource, unsent_parameters
from sextant.memory import Feasibility, assess
from sextant.progress import Progress
from sextant.workload import load_request_model
from sextant.workload.prompts import PromptSource, RandomTokens, load_prompt_source

log = logging.getLogger(__name__)
# Room for the results of a cell; a run that ends for want of it would lose its GPU time.
_FREE_DISK_BYTES = 64 * 2**20


def measure_cell(
    cell: Cell, settings: EngineSettings, outputs: CellOutputs, progress: Progress
) -> None:
    """Measure a cell and write its results; an infeasible cell is a result too.

    Raises:
        ServerError: the server failed for a reason other than memory.
        InputError: the workload has no cap that the LLM's context can hold, or the
            machine lacks the devices or the disk.
    """
    longest_tokens = cell.max_input_tokens + cell.max_output_tokens
    # What counts is the type that is served, not the one the weights were published in.
    llm = load_llm(cell.config_path, settings.dtype)
    if longest_tokens > llm.context_tokens:
        fix = "lower max_input_tokens or max_output_tokens of the workload"
        problem = f"requests of {longest_tokens} tokens exceed {llm.context_tokens} of context"
        raise InputError(problem, field=cell.llm_id, fix=fix)
    _require_disk(outputs.run.parent)
    feasibility = assess(llm, cell.devices, settings.memory_utilization, longest_tokens)
    run = _Run(cell, settings, outputs, progress, time.monotonic_ns())
    if feasibility.is_feasible:
        with _model(cell) as folder:
            spec = ServerSpec(
                model=folder,
                load_format="auto" if cell.model else "dummy",
                devices=cell.devices,
                batch_weight_tokens=feasibility.max_batch_weight_tokens,
                kv_bytes_per_token=llm.kv_bytes_per_token,
                max_request_tokens=longest_tokens,
                device_indices=pick_devices(cell.devices),
                seed=cell.seed,
            )
            run.tune_and_load(spec, llm.vocab_size)
    run.write(feasibility)


@contextmanager
def _model(cell: Cell) -> Iterator[Path]:
    if cell.model:
        yield Path(cell.model)
    else:
        with model_folder(cell.config_path) as folder:
            yield folder


def _prompts(cell: Cell, vocab_size: int) -> tuple[PromptSource, str]:
    """Return what makes a cell's prompts, and its name; without a tokenizer they are random."""
    tokenizer = Path(cell.model or "") / "tokenizer.json"
    if cell.prompts and cell.model and tokenizer.is_file():
        return load_prompt_source(cell.prompts, tokenizer, vocab_size=vocab_size), cell.prompts
    if cell.prompts:
        log.warning("%s has no tokenizer.json: its prompts are random token ids", cell.llm_id)
    return RandomTokens(vocab_size), "random token ids"


def _require_disk(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _FREE_DISK_BYTES:
        problem = f"{free / 2**20:.0f} MiB of disk are free, {_FREE_DISK_BYTES / 2**20:.0f} needed"
        raise InputError(problem, file=folder, fix="free some space and run again")


class _Run:
    """The state of one measurement: what has been recorded so far."""

    def __init__(
        self,
        cell: Cell,
        settings: EngineSettings,
        outputs: CellOutputs,
        progress: Progress,
        epoch_ns: int,
    ) -> None:
        self.cell, self.settings, self.outputs = cell, settings, outputs
        self.progress, self.epoch_ns = progress, epoch_ns
        self.started_at = datetime.now(UTC)
        self.probes: list[Probe] = []
        self.levels: list[dict] = []
        self.request_rows: list[dict] = []
        self.server_rows: list[dict] = []
        self.telemetry_rows: list[dict] = []
        self.server_facts: dict | None = None
        self.unsent_parameters: list[str] = []
        self.prompts: str | None = None

    def tune_and_load(self, spec: ServerSpec, vocab_size: int) -> None:
        """Search the batch weight; load the server that passed the last probe."""
        lowest, highest = spec.max_request_tokens, spec.batch_weight_tokens
        while weight := next_weight(self.probes, lowest, highest, self.settings.max_server_starts):
            started = time.monotonic()
            server = Server(
                replace(spec, batch_weight_tokens=weight), self.settings, self.outputs.server_log
            )
            self.progress.note(f"server start {len(self.probes) + 1}: batch weight {weight}")
            try:
                with server:
                    target = Target(server.base_url, "sextant", server.api_key)
                    self._probe_corner_cases(server, target, weight, vocab_size)
                    self._record(weight, "ok", "all corner cases passed", started)
                    if not next_weight(
                        self.probes, lowest, highest, self.settings.max_server_starts
                    ):
                        self._load(server, target, vocab_size)
            except ServerError as error:
                if not error.is_out_of_memory:
                    raise
                self._forget_levels()
                self._record(weight, "out_of_memory", str(error), started)

    def _forget_levels(self) -> None:
        """Drop what a server that ran out of memory under load had measured.

        Its batch weight did not fit after all; levels of two weights would not compare.
        """
        if self.server_facts is not None:
            self.probes.pop()  # one start is one probe: the failure replaces the pass
        self.server_facts = None
        for rows in (self.levels, self.request_rows, self.server_rows, self.telemetry_rows):
            rows.clear()

    def _record(self, weight: int, outcome: str, detail: str, started: float) -> None:
        self.probes.append(Probe(weight, outcome, detail, time.monotonic() - started))
        log.info("batch weight %d tokens: %s", weight, outcome)

    def _probe_corner_cases(self, server: Server, target: Target, weight: int, vocab: int) -> None:
        cases = corner_cases(
            weight,
            self.cell.max_input_tokens,
            self.cell.max_output_tokens,
            self.settings.max_num_seqs,
        )
        for name, (inputs, outputs) in cases.items():
            timeout_s = self.settings.request_timeout_s
            outcomes = run_batch(target, inputs, outputs, vocab, self.cell.seed, timeout_s)
            failed = [outcome for outcome in outcomes if outcome.status != "ok"]
            if failed or not server.is_alive():
                detail = failed[0].error if failed else "the server ended"
                raise server.error(f"corner case '{name}' failed: {detail}")

    def _load(self, server: Server, target: Target, vocab_size: int) -> None:
        model = load_request_model(self.cell.workload_path)
        self.unsent_parameters = unsent_parameters(model)
        if self.unsent_parameters:
            log.warning("requests do not carry: %s", ", ".join(self.unsent_parameters))
        self.server_facts = {
            "command": server.command,
            "version": server.version(),
            "start_duration_s": server.start_duration_s,
            "devices": list(server.spec.device_indices),
            "batch_weight_tokens": server.spec.batch_weight_tokens,
        }
        # One source for all levels: it never gives the same prompt twice.
        prompts, self.prompts = _prompts(self.cell, vocab_size)
        for level in self.cell.scenario.levels:
            self.progress.step(f"{level} users")
            seed = self.cell.seed + LEVEL_SEED_STRIDE * level
            source = RequestSource(target, model, prompts, seed, self.cell.sampler)
            self._measure_level(server, target, source, level)

    def _measure_level(
        self, server: Server, target: Target, source: RequestSource, level: int
    ) -> None:
        scenario = self.cell.scenario
        indices = server.spec.device_indices
        is_cpu = self.cell.devices.kind == "cpu"
        reader = (
            telemetry.cpu_reader(server.pid, len(indices))
            if is_cpu
            else telemetry.nvml_reader(indices)
        )
        watchers = (
            server_metrics.Poller(server.base_url, level, self.epoch_ns),
            telemetry.Sampler(reader, level, self.epoch_ns),
        )
        timeout_s, epoch_ns = self.settings.request_timeout_s, self.epoch_ns
        warmup = run_closed_loop(target, source, level, scenario.warmup_s, timeout_s, epoch_ns)
        before = self._metrics(server, level)
        for watcher in watchers:
            watcher.start()
        result = run_closed_loop(target, source, level, scenario.duration_s, timeout_s, epoch_ns)
        self.server_rows += watchers[0].stop()
        self.telemetry_rows += watchers[1].stop()
        after = self._metrics(server, level)
        self.request_rows += result.rows
        self.levels.append(
            {
                "level": level,
                "started_s": result.started_s,
                "duration_s": result.duration_s,
                "n_warmup_requests": len(warmup.rows),
                "n_prepared_late": result.n_prepared_late,
                "client_lag_ms": result.client_lag_ms,
                "server_mean_itl_ms": server_metrics.mean_itl_ms(before, after),
            }
        )

    @staticmethod
    def _metrics(server: Server, level: int) -> str:
        try:
            return server_metrics.fetch(server.base_url)
        except OSError as error:
            raise server.error(f"the server died at {level} users ({error})") from error

    def write(self, feasibility: Feasibility) -> None:
        """Write all results; `run.json`, which declares the cell whole, comes last."""
        cell, outputs = self.cell, self.outputs
        outputs.run.unlink(missing_ok=True)  # it must not vouch for the files of two runs
        is_tuned = bool(self.probes) and self.probes[-1].outcome == "ok"
        reason = feasibility.reason
        if feasibility.is_feasible and not is_tuned:
            reason = f"does not fit: no batch weight passed in {len(self.probes)} server starts"
        verdict = {"is_feasible": is_tuned, "reason": reason}
        origin = provenance({"workload": cell.workload_path}, seed=cell.seed)
        tables = (
            (outputs.requests, self.request_rows, REQUEST_SCHEMA),
            (outputs.server, self.server_rows, server_metrics.SCHEMA),
            (outputs.telemetry, self.telemetry_rows, telemetry.SCHEMA),
        )
        for path, rows, schema in tables:
            write_parquet(path, pa.Table.from_pylist(rows, schema=schema), origin)
        tuned = self.probes[-1].batch_weight_tokens if is_tuned else None
        write_json(
            outputs.tuning,
            {
                **verdict,
                "memory": asdict(feasibility),
                "batch_weight_tokens": tuned,
                "probes": [probe.as_dict() for probe in self.probes],
            },
        )
        write_json(
            outputs.run,
            {
                "source": cell.source,
                "llm_id": cell.llm_id,
                "gpu_profile_id": cell.gpu_profile_id,
                "workload_id": cell.workload_id,
                "scenario_id": cell.scenario_id,
                "scenario": asdict(cell.scenario),
                **verdict,
                "batch_weight_tokens": tuned,
                "server": self.server_facts,
                "unsent_parameters": self.unsent_parameters,
                "sampler": cell.sampler,
                "prompts": self.prompts,
                "levels": self.levels,
                "started_at": self.started_at.isoformat(timespec="seconds"),
                "host": host_facts(),
                "provenance": origin,
            },
        )

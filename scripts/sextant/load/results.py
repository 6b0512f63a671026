"""The result of a load run as the files of a cell, with a summary."""

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from sextant.base.files import provenance
from sextant.engine.host import host_facts
from sextant.engine.http import Target
from sextant.experiment.scenarios import Scenario, as_json
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.load.measure import LevelResult, Measured, Subject
from sextant.pages.blocks import Document
from sextant.points.cell_files import REQUEST_SCHEMA, write_cell
from sextant.points.run import CellRun, LevelRun, Quantiles, ServerFacts
from sextant.points.verdict import FEASIBLE, Tuning


def write_load(
    out: Path,
    targets: Sequence[Target],
    scenario: Scenario,
    subject: Subject,
    measured: Measured,
    started_at: datetime,
    seed: int,
    version: str | None,
    limits_ms: Mapping[str, float],
) -> Document:
    """Write the results of a scenario's levels to the folder `out`; return their summary.

    `version` is the server's, `limits_ms` are those of goodput.
    """
    interruption, first = measured.interruption, targets[0]
    n_replicas = len(targets)
    levels = [
        level_run(
            level,
            result,
            engine_version=version,
            timeout_s=scenario.timeout_s,
            times_since=started_at,
        )
        # Fewer results than levels, if the load was interrupted.
        for level, result in zip(scenario.levels, measured.results, strict=False)
    ]
    run = CellRun(
        source="measured",
        llm_id=subject.llm_id,
        gpu_profile_id=subject.gpu_profile_id,
        workload_id=subject.workload_id,
        scenario_id=scenario.kind,
        variant_id=DEFAULT_VARIANT if n_replicas == 1 else f"{n_replicas}-replicas",
        scenario=as_json(scenario),
        variant=Variant(replicas=n_replicas),
        verdict=FEASIBLE,
        server=ServerFacts(engine=subject.engine, version=version, url=first.base_url),
        seed=seed,
        sampler=subject.sampler,
        prompts=subject.prompts,
        unsent_parameters=tuple(subject.unsent_parameters),
        levels=tuple(levels),
        is_complete=interruption is None,
        interruption=str(interruption) if interruption else None,
        started_at=started_at.replace(microsecond=0),
        host=host_facts(),
        definition=dict(subject.facts),
        provenance=provenance(base_url=first.base_url, model=first.model, seed=seed),
    )
    tuning = Tuning(verdict=FEASIBLE, probes=())
    summaries: list[Document] = []

    def write_summary(folder: Path) -> None:
        from sextant.load.summary import summarise_load, summary_document
        from sextant.pages.page import write_page

        logs = [result.log for result in measured.results]
        summaries.append(summary_document(summarise_load(run, logs, limits_ms)))
        write_page(summaries[0], folder / "summary.html", folder / "summary.json")

    batches = chain.from_iterable(result.batches() for result in measured.results)
    requests = pa.RecordBatchReader.from_batches(REQUEST_SCHEMA, batches)
    write_cell(out, run, tuning, {"requests": requests}, write_summary)
    return summaries[0]


def level_run(level: float, result: LevelResult, **more: Any) -> LevelRun:
    """Return what a level's result says of it in `run.json`, and `more` fields of it."""
    counts = ("n_warmup_requests", "n_cooldown_requests", "n_prepared_late", "n_unfinished")
    same = ("started_s", "duration_s", *counts, "lag_warning", "answer_warnings")
    return LevelRun(
        level=level,
        **{name: getattr(result, name) for name in same},
        client_lag_ms=Quantiles(**result.client_lag_ms),
        send_lag_ms=Quantiles(**result.send_lag_ms),
        host=platform.node(),
        **more,
    )

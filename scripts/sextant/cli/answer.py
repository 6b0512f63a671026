"""Commands that look into answers, and into the characterizations that answers rest on."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from sextant.api.groups import Database
from sextant.api.question_options import (
    LimitOptions,
    LoadOptions,
    ProbedCaseOptions,
    StoreOptions,
    slo_of_options,
)
from sextant.base.errors import InputError
from sextant.cli.printing import grouped, print_document, say


@grouped
def explain(
    *,
    gpu_profile: Annotated[
        str | None, typer.Option(help="GPU profile, e.g. 1xA100-40GB; without it: the LLM's facts.")
    ] = None,
    users_per_replica: Annotated[
        int | None, typer.Option(min=1, help="Concurrent users of a replica.")
    ] = None,
    case: ProbedCaseOptions,
    printed: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How to print the result.")
    ] = "text",
) -> None:
    """Say what a predicted latency is made of: the terms of the mechanistic model.

    Without a GPU profile: what the LLM is made of, and what was assumed of it.
    """
    from sextant.ask.forecast import MEDIANS
    from sextant.recommend.explain import explain_llm, explanation_document
    from sextant.recommend.llm_description import describe_llm, llm_document

    if (gpu_profile is None) != (users_per_replica is None):
        missing = "--gpu-profile" if gpu_profile is None else "--users-per-replica"
        fix = f"give {missing}, or leave both out for the LLM's facts"
        raise InputError("a latency needs a GPU profile and users", field=missing, fix=fix)
    if gpu_profile is None or users_per_replica is None:
        print_document(llm_document(describe_llm(case.question(MEDIANS))), printed)
        return

    # The limits play no part: latencies are explained, not judged.
    limits = LimitOptions(nttft_ms="1", itl_ms="1")
    slo = slo_of_options(case, LoadOptions(users=users_per_replica), limits)
    explanation = explain_llm(case.question(slo), gpu_profile, users_per_replica)
    print_document(explanation_document(explanation), printed)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(StoreOptions):
    """What predictors are judged on."""

    slos: Path | None = None
    """Sheet of SLOs (columns as config/slos.tsv) to judge S, O and S/O on; without it the accuracy
    of latencies alone is judged."""
    random_slos: Annotated[int | None, typer.Option(min=1, max=10_000)] = None
    """Number of SLOs to draw (--seed) in place of a sheet, log-uniformly over what was measured."""
    predictor: list[str] | None = None
    """Predictor to judge; may be given again. Those of the store by default."""
    hold_out: Literal["llm", "gpu", "engine", "engine_version"] = "llm"
    """What a fold has not seen where the accuracy of latencies is judged."""


@grouped
def evaluate(
    *,
    tasks: EvaluateOptions,
    printed: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How to print the result.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="File to write the result to as a page, too."),
    ] = None,
) -> None:
    """Judge predictors by leave-one-LLM-out: accuracy, success rate S, overspend O and S/O."""
    from sextant.ask.source import load_sources
    from sextant.judge.comparison import evaluate_predictors
    from sextant.judge.document import comparison_document

    if tasks.slos and tasks.random_slos:
        field = "--slos, --random-slos"
        fix = "give one of them"
        raise InputError("a sheet and random SLOs are given", field=field, fix=fix)
    source, _ = load_sources(
        tasks.source or (), tasks.database, tasks.workload_id, tasks.scenario_id
    )
    for line in source.left_out:
        say(line, err=True)
    result = evaluate_predictors(
        source,
        tasks.slos or tasks.random_slos,
        tasks.predictor,
        tasks.seed,
        hold_out=tasks.hold_out,
        # Standard output is for the result alone.
        progress=partial(say, err=True),
    )
    document = comparison_document(result)
    if out is not None:
        from sextant.pages.page import write_page

        write_page(document, out)
    print_document(document, printed)


CharacterizationFolder = Annotated[
    Path, typer.Option(file_okay=False, help="Folder of the characterization, made or updated.")
]


def characterizations(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of characterizations to list, too.")
    ] = None,
    database: Database = None,
    printed: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How to print the list.")
    ] = "text",
) -> None:
    """List what answers can rest on: what ships, what the store has, and folders."""
    from sextant.ask.source import known_sources
    from sextant.points.characterization import characterization_summary, characterization_text

    rows = [
        characterization_summary(source, path)
        for source, path in known_sources(folders or (), database)
    ]
    say(
        json.dumps(rows, indent=2)
        if printed == "json"
        else "\n\n".join(map(characterization_text, rows))
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What was measured, as far as the files do not say it."""

    gpu_profile: str  #: What was measured, as <n>x<gpu_id>, e.g. 1xH100-80GB.
    configs: str | None = None
    """Folder of the LLMs' <llm_id>.json, relative to OUT; what ships else."""
    llm: str | None = None  #: The LLM's name on Hugging Face, if the files do not have it.
    engine: str | None = None  #: The engine that served, e.g. vllm.
    engine_version: str | None = None  #: The engine's version.


@grouped
def import_characterization(
    *,
    tool: Annotated[
        Literal[
            "vllm-bench",
            "sglang-bench",
            "guidellm",
            "aiperf",
            "genai-bench",
            "inference-perf",
            "llm-d",
        ],
        typer.Argument(help="The load tool that wrote the files."),
    ],
    files: Annotated[
        list[Path], typer.Option("--from", help="File of its results; may be repeated.")
    ],
    out: CharacterizationFolder,
    measured: ImportOptions,
) -> None:
    """Make the folder of a characterization from the results of a load tool.

    A published data set is imported by the script in its folder, import.py in
    resources/characterizations/.
    """
    from sextant.law.plausible import points_notes
    from sextant.points.folder import load_folder
    from sextant.points.load_tools import MeasuredSetup, import_load_tool

    served = MeasuredSetup(
        measured.gpu_profile, measured.llm, measured.engine, measured.engine_version
    )
    say(f"{out}: {import_load_tool(tool, files, out, served, measured.configs)}")
    for note in points_notes(load_folder(out)):
        say(note)


def export_characterization(
    out: CharacterizationFolder,
    database: Database = None,
    source: Annotated[str | None, typer.Option(help="Characterization to write.")] = None,
    llms: Annotated[
        Path, typer.Option(help="Sheet of the LLMs, whose configurations are copied.")
    ] = Path("config/llms.tsv"),
    licence: Annotated[
        str | None, typer.Option(help="Licence of the data, for a new folder, e.g. CC-BY-4.0.")
    ] = None,
    attribution: Annotated[
        str | None, typer.Option(help="Who measured it, for a new folder.")
    ] = None,
) -> None:
    """Write measured points as the folder of a characterization, to share or to answer from."""
    from sextant.ask.question import PIPELINE_STORE
    from sextant.points.export import export_folder
    from sextant.points.measured import load_characterization

    measured = load_characterization(database or PIPELINE_STORE, source)
    count = export_folder(measured, out, llms=llms, licence=licence, attribution=attribution)
    say(f"{out}: {count} points")

"""The commands on characterizations: list, import and export them."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.terminal import say

Database = Annotated[
    Path | None,
    typer.Option(
        help="Store that the pipeline built, or a folder of what `sextant load` has written; by "
        "default results/sextant.duckdb, or results/NAME/sextant.duckdb for archive:NAME."
    ),
]

CharacterizationFolder = Annotated[
    Path, typer.Option(file_okay=False, help="Folder of the characterization, made or updated.")
]


class Publisher(StrEnum):
    """Whose layout a published characterization has."""

    inferencex = "inferencex"
    mlenergy = "mlenergy"
    vllm_bench = "vllm-bench"
    guidellm = "guidellm"
    aiperf = "aiperf"
    inference_perf = "inference-perf"


def characterizations(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of characterizations, beside what ships.")
    ] = None,
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List what answers can rest on: what ships, the store at hand, and folders."""
    from sextant.answer.source import known_sources
    from sextant.points.characterizations.listing import as_text, summary

    rows = [summary(known, place) for known, place in known_sources(folders or (), database)]
    say(json.dumps(rows, indent=2) if as_json else "\n\n".join(map(as_text, rows)))


def import_characterization(
    publisher: Annotated[
        Publisher, typer.Argument(help="Whose layout the files have; the last four are load tools.")
    ],
    files: Annotated[list[Path], typer.Option("--from", help="File; may be repeated.")],
    out: CharacterizationFolder,
    configs: Annotated[
        str, typer.Option(help="Folder of the LLMs' <llm_id>.json, relative to OUT.")
    ] = "../../llms",
    gpu_profile: Annotated[
        str | None,
        typer.Option(help="Of a load tool: what was measured, <n>x<gpu_id>, e.g. 1xH100-80GB."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(help="Of a load tool: the LLM's name on Hugging Face, if the files lack it."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Of a load tool: what served.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Of a load tool: its version.")] = None,
) -> None:
    """Make the folder of a characterization from what somebody published, or a load tool wrote."""
    from sextant.points.importing.inferencex import import_inferencex
    from sextant.points.importing.load_tools import TOOLS, Served, import_load_tool
    from sextant.points.importing.mlenergy import import_mlenergy

    of_tools = {"--gpu-profile": gpu_profile, "--llm": llm, "--engine": engine}
    of_tools["--engine-version"] = engine_version
    if publisher.value in TOOLS:
        if gpu_profile is None:
            fix = "give it as <n>x<gpu_id>, e.g. 1xH100-80GB"
            raise InputError("the files do not tell it", field="--gpu-profile", fix=fix)
        served = Served(gpu_profile, llm, engine, engine_version)
        imported = import_load_tool(publisher.value, files, out, served, configs)
    elif given := [name for name, value in of_tools.items() if value is not None]:
        raise InputError("it is for load tools", field=given[0], fix="leave it out")
    elif publisher is Publisher.mlenergy:
        imported = import_mlenergy(files, out, configs)
    elif len(files) == 1:
        imported = import_inferencex(files[0], out, configs)
    else:
        raise InputError("it is one file", field="--from", fix="give --from once")
    say(f"{out}: {imported}")


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
    """Write the points of a store as the folder of a characterization."""
    from sextant.answer.source import store_path
    from sextant.points.characterizations.characterization import load_characterization
    from sextant.points.characterizations.export import export_folder

    known = load_characterization(store_path(database, source), source)
    count = export_folder(known, out, llms=llms, licence=licence, attribution=attribution)
    say(f"{out}: {count} points")

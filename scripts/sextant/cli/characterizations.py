"""The commands on characterizations: list, import and export them."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sextant.cli.options import Database, say

CharacterizationFolder = Annotated[
    Path, typer.Option(file_okay=False, help="Folder of the characterization, made or updated.")
]


class LoadTool(StrEnum):
    """Whose results can be imported."""

    vllm_bench = "vllm-bench"
    guidellm = "guidellm"
    aiperf = "aiperf"
    inference_perf = "inference-perf"


def characterizations(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of characterizations to list, too.")
    ] = None,
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List what answers can rest on: what ships, what the store has, and folders."""
    from sextant.answer.source import known_sources
    from sextant.points.characterization import as_text, summary

    rows = [summary(known, place) for known, place in known_sources(folders or (), database)]
    say(json.dumps(rows, indent=2) if as_json else "\n\n".join(map(as_text, rows)))


def import_characterization(
    tool: Annotated[LoadTool, typer.Argument(help="The load tool that wrote the files.")],
    files: Annotated[
        list[Path], typer.Option("--from", help="File of its results; may be repeated.")
    ],
    out: CharacterizationFolder,
    gpu_profile: Annotated[
        str, typer.Option(help="What was measured, as <n>x<gpu_id>, e.g. 1xH100-80GB.")
    ],
    configs: Annotated[
        str, typer.Option(help="Folder of the LLMs' <llm_id>.json, relative to OUT.")
    ] = "../../llms",
    llm: Annotated[
        str | None,
        typer.Option(help="The LLM's name on Hugging Face, if the files do not have it."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="The engine that served, e.g. vllm.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="The engine's version.")] = None,
) -> None:
    """Make the folder of a characterization from the results of a load tool.

    A published data set is imported by the script in its folder, import.py in
    resources/characterizations/.
    """
    from sextant.points.load_tools import Served, import_load_tool

    served = Served(gpu_profile, llm, engine, engine_version)
    say(f"{out}: {import_load_tool(tool.value, files, out, served, configs)}")


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
    from sextant.answer.source import store_path
    from sextant.points.export import export_folder
    from sextant.points.measured import load_characterization

    known = load_characterization(store_path(database), source)
    count = export_folder(known, out, llms=llms, licence=licence, attribution=attribution)
    say(f"{out}: {count} points")

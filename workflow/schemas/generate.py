"""Writes the schemas that editors use, from the dataclasses that the program checks by."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import yaml

from sextant.ask.api_prices import ApiPriceRow
from sextant.ask.probe import ProbeRow
from sextant.base.sheets import field_docs, hints_of, model_of
from sextant.experiment import sheets
from sextant.experiment.downloads import Dataset
from sextant.experiment.loading import SHEETS
from sextant.facts.gpu import GPU, PriceRow, ProviderPriceRow
from sextant.points import folder_sheets
from sextant.trace.mapping import MappingFile

KINDS: dict[str, type] = {
    **{name: kind for name, (kind, _) in SHEETS.items()},
    "api_prices": ApiPriceRow,
    "cells": sheets.CellRow,
    "characterization": folder_sheets.DescriptionFile,
    "characterization_feasibility": folder_sheets.FeasibilityRow,
    "characterization_gpu_profiles": folder_sheets.FolderProfileRow,
    "characterization_llms": folder_sheets.FolderLlmRow,
    "chosen_cells": sheets.ChosenCellRow,
    "config": sheets.Configuration,
    "endpoints": sheets.EndpointRow,
    "gpu": GPU,
    "gpu_features": sheets.GpuFeatureRow,
    "llm_features": sheets.LlmFeatureRow,
    "mapping": MappingFile,
    "points": folder_sheets.PointRow,
    "prices": PriceRow,
    "probe": ProbeRow,
    "provider_prices": ProviderPriceRow,
    "registry": Dataset,
}
"""What each schema describes, by the name of its file."""


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass; its sections are written where they belong."""
    whole, docs = model_of(kind).model_json_schema(), field_docs(kind)
    properties = {}
    for name, node in whole["properties"].items():
        section = hints_of(kind)[name]
        node = schema(section) if is_dataclass(section) else node
        kept = {key: value for key, value in node.items() if key not in ("title", "default")}
        properties[name] = kept | {"description": docs[name]}
    about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    known = {"description": about, "type": "object", "additionalProperties": False}
    required = {"required": whole["required"]} if "required" in whole else {}
    return known | required | {"properties": properties}


def texts() -> dict[Path, str]:
    """Return what each file of a schema holds."""
    head = "# Written by `make schemas`, from what the program checks by\n"
    head += "$schema: https://json-schema.org/draft/2020-12/schema\n"
    folder = Path(__file__).parent
    return {
        folder / f"{name}.schema.yaml": head
        + yaml.safe_dump(
            schema(kind), sort_keys=False, default_flow_style=None, allow_unicode=True, width=100
        )
        for name, kind in sorted(KINDS.items())
    }


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")

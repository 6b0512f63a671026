"""What a cell is: all that its measurement depends on, and where its results go."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sextant.base.files import sha256_file
from sextant.experiment.scenarios import Scenario, scenario_of
from sextant.experiment.servers import Variant
from sextant.facts.gpu import Devices


@dataclass(frozen=True)
class Cell:
    """An LLM × GPU profile × workload × scenario, with all that its measurement depends on."""

    source: str
    llm_id: str
    config_path: Path
    model: str | None
    """Folder of the weights; None for random weights from the config alone."""
    gpu_profile_id: str
    devices: Devices
    workload_id: str
    workload_path: Path
    max_input_tokens: int
    max_output_tokens: int
    scenario_id: str
    scenario: Scenario
    seed: int
    definition: Mapping[str, Any]
    """What the cell was built from, plain data; see `cell_definition`."""
    definition_sha256: str
    """Of `definition` and of the content of the workload and the LLM's config."""
    variant: Variant
    sampler: str = "joint"
    """How requests are drawn from the workload; see `RequestModel.sample`."""
    prompts: str | None = None
    """File that prompts are cut from; None for random token ids."""

    @property
    def longest_request_tokens(self) -> int:
        """Input and output tokens of the workload's longest request."""
        return self.max_input_tokens + self.max_output_tokens


def inputs_sha256(
    definition: Mapping[str, Any], workload: str | Path, config: str | Path
) -> tuple[str, ...]:
    """Return the SHA-256 of a cell's workload (`requests.parquet`), its LLM's config, and, where
    its scenario asks for the workload's arrivals, of `arrivals.json`.
    """
    arrivals = Path(workload).with_name("arrivals.json")
    has_arrivals = isinstance(definition["scenario"].get("arrivals"), str)
    return tuple(map(sha256_file, (workload, config, *[arrivals][: int(has_arrivals)])))


def definition_sha256(definition: Mapping[str, Any], *inputs: str) -> str:
    """Return the SHA-256 of a definition and of the SHA-256 of its inputs (`inputs_sha256`)."""
    facts = [definition, *inputs]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def cell_from_definition(definition: Mapping[str, Any], workload_path: str | Path) -> Cell:
    """Build a cell from its definition (see `sextant.experiment.definition.cell_definition`)."""
    taken = {field.name for field in fields(Cell)} & set(definition)
    values = {name: definition[name] for name in taken}
    values["config_path"] = Path(definition["config_path"])
    values["devices"] = Devices(**definition["devices"])
    values["scenario"] = scenario_of(definition["scenario"])
    values["variant"] = Variant(**definition.get("variant", {}))
    contents = inputs_sha256(definition, workload_path, definition["config_path"])
    return Cell(
        **values,
        definition=definition,
        definition_sha256=definition_sha256(definition, *contents),
        workload_path=Path(workload_path),
    )

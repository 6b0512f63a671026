"""An experiment: what a configuration and its sheets ask for."""

from dataclasses import dataclass

from sextant.base.sheets import Row
from sextant.experiment.cell_key import CellKey
from sextant.experiment.downloads import Dataset
from sextant.experiment.endpoints import Endpoint
from sextant.experiment.scenarios import Scenario
from sextant.experiment.slo import SLO
from sextant.experiment.variants import Variant
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs to know, by id."""

    traces: dict[str, Row]
    workloads: dict[str, Row]
    llms: dict[str, Row]
    llm_facts: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    scenarios: dict[str, Scenario]
    variants: dict[str, Variant]
    slos: dict[str, SLO]
    """Those for users or a request rate."""
    trace_slos: dict[str, SLO]
    """Those for the traffic of a trace."""
    cells: tuple[CellKey, ...]
    studies: dict[str, tuple[CellKey, ...]]
    """The cells that feed each study, of those that benchmarks.tsv gives to one."""
    datasets: dict[str, Dataset]
    features: dict[str, list[Row]]
    """Rows of the sheets `llms` and `gpus` that replace features computed from facts, if any."""
    endpoints: dict[tuple[str, str], Endpoint]
    """Servers that run already, by LLM and GPU profile."""

    def endpoint(self, key: CellKey) -> Endpoint | None:
        """Return where the servers of a cell run already; None if the pipeline starts them."""
        return self.endpoints.get((key.llm_id, key.gpu_profile_id))

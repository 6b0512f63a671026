"""An experiment: what a configuration and its sheets ask for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sextant.base.sheets import Row
from sextant.experiment.cells import CellKey
from sextant.experiment.downloads import Dataset
from sextant.experiment.scenarios import Scenario
from sextant.experiment.servers import Endpoint, Variant
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import SLO


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
    demands: list[Row]
    """What teams want served on a cluster, if the configuration has it (`sextant.answer.fleet`)."""
    adaptive: tuple[CellKey, ...] = ()
    """Cells that `sextant measure` chooses from: those of adaptive rows and of no other row."""
    chosen: Mapping[CellKey, tuple[int, ...]] = field(default_factory=dict)
    """The users to measure in those of them that were chosen, which are among `cells`."""

    def scenario(self, key: CellKey) -> Scenario:
        """Return the load of a cell: its scenario, at the levels that were chosen for the cell."""
        scenario = self.scenarios[key.scenario_id]
        levels = tuple(map(float, self.chosen.get(key, ())))
        return replace(scenario, levels=levels) if levels else scenario

    @property
    def capacity_slos(self) -> dict[str, SLO]:
        """Those whose replicas are found by simulation: of a trace, or of a workload at a rate."""
        if not self.workloads:  # an archive has none, and no trace
            return {}
        rated = {name: slo for name, slo in self.slos.items() if slo.request_rate_rps is not None}
        return self.trace_slos | rated

    def endpoint(self, key: CellKey) -> Endpoint | None:
        """Return where the servers of a cell run already; None if the pipeline starts them."""
        return self.endpoints.get((key.llm_id, key.gpu_profile_id))

"""The engine of a rehearsal: no server runs, and latencies are the law's."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sextant.base.errors import InputError
from sextant.engine.http import MetricNames
from sextant.engine.protocol import RunningServer, ServerSpec
from sextant.experiment.servers import SIMULATED, EngineSettings


class SimulatedEngine:
    """Stands for servers that `sextant.plan.rehearsal` simulates; it starts none."""

    starts_servers = True  # as far as memory facts and the plan go
    metric_names: tuple[MetricNames, ...] = ()

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        """Say that nothing is measured."""
        del settings, file
        return ["engine.name is simulated: a rehearsal, whose latencies are the law's"]

    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> AbstractContextManager[Sequence[RunningServer]]:
        """Raise InputError: there is nothing to serve."""
        del specs, settings, log_path
        fix = "run the pipeline, which simulates its cells"
        raise InputError(f"the engine {SIMULATED} starts no server", field="engine.name", fix=fix)

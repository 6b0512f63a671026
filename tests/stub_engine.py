"""A fake of the engine protocol: its servers are threads of the test.

This is all that a new engine has to have. `tests/fake_engine/python` is another kind of fake: an
interpreter that vLLM's own implementation starts.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sextant.engine.http import MetricNames, Target, fetch
from sextant.engine.protocol import ServerError, ServerSpec
from sextant.experiment.servers import EngineSettings
from sextant.points.verdict import MemoryFacts
from stub_server import StubServer, answer_endpoint

METRICS = "stub_running 2\nstub_waiting 0\nstub_usage 0.5\nstub_itl_sum 1\nstub_itl_count 100\n"


@dataclass(frozen=True)
class StubEngineServer:
    """A server that was started for a spec."""

    spec: ServerSpec
    target: Target
    command: tuple[str, ...] = ("stub", "serve")
    start_duration_s: float = 0.0

    @property
    def batch_weight_tokens(self) -> int:
        return self.spec.batch_weight_tokens

    @property
    def device_indices(self) -> tuple[int | str, ...]:
        return self.spec.device_indices

    @property
    def pids(self) -> tuple[int, ...]:
        return (os.getpid(),)

    def version(self) -> str:
        return "1.2"

    def is_healthy(self) -> bool:
        return True

    def metrics(self) -> str:
        return fetch(self.target.base_url)

    def memory(self) -> MemoryFacts:
        return MemoryFacts()

    def stop_watching_memory(self) -> None:
        pass

    def error(self, message: str) -> ServerError:
        return ServerError(message)


@dataclass(frozen=True)
class StubEngine:
    """An engine whose servers hold at most so many tokens."""

    most_tokens: int
    starts_servers: bool = True
    metric_names: tuple[MetricNames, ...] = (
        MetricNames("stub_running", "stub_waiting", "stub_usage", itl_s="stub_itl"),
    )

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        return [f"{argument} is not known here" for argument in settings.extra_arguments]

    @contextmanager
    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> Iterator[list[StubEngineServer]]:
        with ExitStack() as stack:
            servers = []
            for spec in specs:
                if spec.batch_weight_tokens > self.most_tokens:
                    raise ServerError("the stub ran out of memory", is_out_of_memory=True)
                stub = StubServer(answer_endpoint("stub-model", metrics=METRICS))
                target = Target(stack.enter_context(stub).url, "stub-model")
                servers.append(StubEngineServer(spec, target))
            yield servers

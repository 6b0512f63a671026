"""A fake of the engine protocol: its servers are threads of the test.

This is all that a new engine has to have. `tests/fake_engine/python` is another kind of fake: an
interpreter that vLLM's own implementation starts.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sextant.engine.http import MetricNames, ServerAddress
from sextant.engine.protocol import RunningServer, ServerError, ServerSpec
from sextant.experiment.servers import EngineSettings
from stub_server import StubServer, answer_endpoint

METRICS = "stub_running 2\nstub_waiting 0\nstub_usage 0.5\nstub_itl_sum 1\nstub_itl_count 100\n"


class StubEngineServer(RunningServer):
    """A server that was started for a spec."""

    def version(self) -> str:
        return "1.2"

    def is_healthy(self) -> bool:
        return True


@dataclass(frozen=True)
class StubEngine:
    """An engine whose servers hold at most `most_tokens`."""

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
                target = ServerAddress(stack.enter_context(stub).url, "stub-model")
                weight, places = spec.batch_weight_tokens, spec.device_indices
                started = (["stub", "serve"], 0.0, weight, places, (os.getpid(),))
                servers.append(StubEngineServer(target, *started))
            yield servers

"""An endpoint: an OpenAI-compatible server that runs already, here or elsewhere."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sextant.base.errors import InputError, printable
from sextant.engine.http import (
    GET_TIMEOUT_S,
    MOST_METRICS_BYTES,
    SGLANG_METRICS,
    TGI_METRICS,
    VLLM_METRICS,
    MetricNames,
    Target,
    api_key_of,
    get,
)
from sextant.engine.protocol import ServerError, ServerSpec
from sextant.experiment.servers import Endpoint, EngineSettings
from sextant.points.verdict import MemoryFacts

_VERSION_PATHS = ("/version", "/get_server_info", "/info")
"""Where vLLM, SGLang and TGI say their version."""
_MOST_LETTERS = 100
_MOST_MODELS_BYTES = 4 << 20
_OTHER_FORM = (ValueError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True)
class EndpointServer:
    """A server that somebody else started; what only its host knows of it is unknown."""

    target: Target
    command: None = None
    start_duration_s: None = None
    batch_weight_tokens: None = None
    device_indices: tuple[int | str, ...] = ()
    pids: tuple[int, ...] = ()

    def require_ready(self) -> None:
        """Raise InputError unless the server answers, takes the key and serves the model."""
        status, content = get(self.target, "/v1/models", most_bytes=_MOST_MODELS_BYTES)
        if status is None:
            fix = "start the server, or correct its address"
            raise InputError(f"{self.target.base_url} does not answer", field="base_urls", fix=fix)
        if status in (401, 403):
            problem = f"{self.target.base_url} refuses the API key (status {status})"
            fix = "name the environment variable that holds the key, and export it"
            raise InputError(problem, field="api_key_env", fix=fix)
        names: list[str] = []
        with suppress(*_OTHER_FORM):  # a server may answer in another form
            names = [str(model["id"]) for model in json.loads(content)["data"]]
        if status == 200 and names and self.target.model not in names:
            problem = f"{self.target.base_url} serves no model {self.target.model!r}"
            fix = f"use one of: {', '.join(names)}"
            raise InputError(problem, field="served_model_name", fix=fix)

    def version(self) -> str | None:
        """Return the version that the server reports, None if it reports none in time."""
        end_s = time.monotonic() + GET_TIMEOUT_S
        for path in _VERSION_PATHS:
            status, content = get(self.target, path, timeout_s=max(end_s - time.monotonic(), 0.01))
            if status == 200:
                with suppress(*_OTHER_FORM):
                    said = json.loads(content)["version"]
                    if isinstance(said, str | int | float):
                        return printable(str(said).encode(errors="replace").decode())[
                            :_MOST_LETTERS
                        ]
        return None

    def is_healthy(self) -> bool:
        """Return whether the server answers without an error; it may have no `/health`."""
        status, _ = get(self.target, "/health")
        return status is not None and status < 500

    def metrics(self) -> str:
        """Return its Prometheus text, empty if it has none; OSError if it does not answer."""
        status, text = get(self.target, "/metrics", most_bytes=MOST_METRICS_BYTES)
        if status is None:
            raise ConnectionError(f"{self.target.base_url} does not answer")
        return text if status == 200 else ""

    def memory(self) -> MemoryFacts:
        """Return nothing: its memory is not ours to see."""
        return MemoryFacts()

    def stop_watching_memory(self) -> None:
        """Do nothing: its memory is not watched."""

    def error(self, message: str) -> ServerError:
        """Return the error for a server that failed; why is in its own log."""
        return ServerError(f"{self.target.base_url}: {message}")


class EndpointEngine:
    """Servers that are measured, and neither started, tuned nor stopped."""

    starts_servers = False
    metric_names: tuple[MetricNames, ...] = (VLLM_METRICS, SGLANG_METRICS, TGI_METRICS)

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        """Check that nothing is asked for that only a start can give; see `Engine.check`."""
        if settings.extra_arguments:
            fix = "remove them: the server runs already"
            problem = "an endpoint takes no arguments"
            raise InputError(problem, file=file, field="engine.extra_arguments", fix=fix)
        return []

    @contextmanager
    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> Iterator[list[EndpointServer]]:
        """Yield the servers of `settings.endpoint` once each is ready; see `Engine.serve`."""
        del specs, log_path
        assert settings.endpoint is not None, "the experiment gives one to each cell"
        servers = endpoint_servers(settings.endpoint)
        for server in servers:
            server.require_ready()
        yield servers


def endpoint_servers(endpoint: Endpoint) -> list[EndpointServer]:
    """Return the servers of an endpoint; raise InputError if the environment lacks the API key."""
    key = api_key_of(endpoint.api_key_env, "api_key_env") if endpoint.api_key_env else None
    if endpoint.api_key_env and not key:
        problem = f"the environment has no {endpoint.api_key_env}"
        fix = "export it where the job runs, or leave api_key_env empty if no key is needed"
        raise InputError(problem, field="api_key_env", fix=fix)
    name, ca_file = endpoint.served_model_name, endpoint.ca_file
    return [EndpointServer(Target(url, name, key, ca_file)) for url in endpoint.base_urls]

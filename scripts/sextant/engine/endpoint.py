"""An endpoint: an OpenAI-compatible server that runs already, here or elsewhere."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sextant.base.errors import InputError
from sextant.engine import http
from sextant.engine.protocol import OTHER_FORM, RunningServer, ServerSpec
from sextant.experiment.servers import Endpoint, EngineSettings

_MOST_MODELS_BYTES = 4 << 20


class EndpointEngine:
    """Servers that are measured, and neither started, tuned nor stopped."""

    starts_servers = False
    metric_names: tuple[http.MetricNames, ...]
    metric_names = (http.VLLM_METRICS, http.SGLANG_METRICS, http.TGI_METRICS)

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        """Check that nothing is asked for that only a start can give."""
        if settings.extra_arguments:
            fix = "remove them: the server runs already"
            problem = "an endpoint takes no arguments"
            raise InputError(problem, file=file, field="engine.extra_arguments", fix=fix)
        return []

    @contextmanager
    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> Iterator[list[RunningServer]]:
        """Yield the servers of `settings.endpoint` once each is ready; see `Engine.serve`."""
        del specs, log_path
        assert settings.endpoint is not None, "the experiment gives one to each cell"
        servers = endpoint_servers(settings.endpoint)
        for server in servers:
            _require_ready(server.target)
        yield servers


def endpoint_servers(endpoint: Endpoint) -> list[RunningServer]:
    """Return the servers of an endpoint; raise InputError if the environment lacks the API key."""
    key = http.api_key_of(endpoint.api_key_env, "api_key_env") if endpoint.api_key_env else None
    if endpoint.api_key_env and not key:
        problem = f"the environment has no {endpoint.api_key_env}"
        fix = "export it where the job runs, or leave api_key_env empty if no key is needed"
        raise InputError(problem, field="api_key_env", fix=fix)
    name = endpoint.served_model_name
    ca_file = endpoint.ca_file
    return [
        RunningServer(http.ServerAddress(url, name, key, ca_file)) for url in endpoint.base_urls
    ]


def _require_ready(target: http.ServerAddress) -> None:
    """Raise InputError unless the server answers, takes the key and serves the model."""
    status, content = http.get(target, "/v1/models", most_bytes=_MOST_MODELS_BYTES)
    if status is None:
        fix = "start the server, or correct its address"
        raise InputError(f"{target.base_url} does not answer", field="base_urls", fix=fix)
    if status in (401, 403):
        problem = f"{target.base_url} refuses the API key (status {status})"
        fix = "name the environment variable that holds the key, and export it"
        raise InputError(problem, field="api_key_env", fix=fix)
    names: list[str] = []
    with suppress(*OTHER_FORM):
        names = [str(model["id"]) for model in json.loads(content)["data"]]
    if status == 200 and names and target.model not in names:
        problem = f"{target.base_url} serves no model {target.model!r}"
        fix = f"use one of: {', '.join(names)}"
        raise InputError(problem, field="served_model_name", fix=fix)

"""How servers are run: the `engine` part of the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sextant.experiment.endpoints import ENDPOINT, Endpoint

# What a measurement of servers that are started here depends on.
_FACTS = (
    "dtype",
    "block_size_tokens",
    "max_num_seqs",
    "memory_utilization",
    "max_server_starts",
    "extra_arguments",
)


@dataclass(frozen=True)
class EngineSettings:
    """The `engine` part of the configuration."""

    python: str
    """Interpreter of the environment that has the engine."""
    dtype: str
    block_size_tokens: int
    max_num_seqs: int
    """Most requests in one batch."""
    memory_utilization: float
    start_timeout_s: float
    request_timeout_s: float
    max_server_starts: int
    extra_arguments: tuple[str, ...] = ()
    dcgm_url: str | None = None
    """Metrics of a dcgm-exporter on the node; None if there is none."""
    name: str = "vllm"
    """The engine, a key of `sextant.engine.registry.ENGINES`."""
    endpoint: Endpoint | None = None
    """The servers of the engine `endpoint`, which run already."""


def engine_settings(config: Mapping[str, Any], endpoint: Endpoint | None = None) -> EngineSettings:
    """Return the `engine` part of a configuration that was checked, for an endpoint if given."""
    values = dict(config["engine"])
    values["extra_arguments"] = tuple(values.get("extra_arguments", ()))
    if endpoint:
        values |= {"name": ENDPOINT, "endpoint": endpoint}
    return EngineSettings(**values)


def engine_facts(settings: EngineSettings) -> dict[str, Any]:
    """Return what a measurement depends on, as plain data: with these it grows stale."""
    endpoint = settings.endpoint
    if endpoint:
        urls, name = list(endpoint.base_urls), endpoint.served_model_name
        return {"name": settings.name, "base_urls": urls, "served_model_name": name}
    facts = {name: getattr(settings, name) for name in ("name", *_FACTS)}
    return facts | {"extra_arguments": list(settings.extra_arguments)}

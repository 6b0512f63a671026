"""How a cell's servers are set up: variants, engine settings, servers that run already."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from sextant.base.errors import InputError
from sextant.base.network import host_and_port, tls_context, without_v1
from sextant.base.sheets import IS_SELECTABLE, load_sheet
from sextant.experiment.sheets import DEFAULT_VARIANT, EndpointRow, EngineSection
from sextant.pages.words import plural

ENDPOINT = "endpoint"  # name of the engine of servers that run already
SIMULATED = "simulated"  # name of the engine of a rehearsal, whose latencies are the law's
REHEARSAL_NOTE = (
    "A rehearsal (engine.name: simulated): no server ran, and all latencies here are the law's, "
    "simulated. Measure before you rent."
)
"""What each page of a rehearsal says first."""
# Settings that a measurement depends on if its servers are started here.
_FACTS = ("name", "dtype", "block_size_tokens", "max_num_seqs", "memory_utilization")


@dataclass(frozen=True)
class Variant:
    """How a cell's servers are set up."""

    variant_id: str = DEFAULT_VARIANT
    replicas: PositiveInt = 1  #: servers that share the requests evenly; default 1
    placement: Literal["own", "shared"] = "own"
    """own (default): each replica has the devices of the GPU profile to itself; shared: all run on
    the same devices, each with an equal share of the memory"""
    batch_weight_tokens: PositiveInt | None = None
    """batch weight of each replica; tuned where the cell is empty"""
    cpu_cores: PositiveInt | None = None
    """processor cores that each server may use, its own with placement own; all by default"""
    memory_limit_gib: PositiveFloat | None = None
    """private host memory that each process of a server may use, in GiB; no limit by default"""

    @property
    def memory_share(self) -> float:
        """Fraction of the usable device memory that each replica gets."""
        return 1 / self.replicas if self.placement == "shared" else 1.0

    @property
    def n_device_sets(self) -> int:
        """How often the devices of the GPU profile are needed."""
        return 1 if self.placement == "shared" else self.replicas


@dataclass(frozen=True)
class VariantRow(Variant):
    """config/variants.tsv: each row is one way to set up a cell's servers; `default` needs none."""

    variant_id: Annotated[
        str, Field(pattern=r"^(?!default$)(?!(?i:.*\.server(\.[0-9]+)?$))"), IS_SELECTABLE
    ]
    """name of the variant, not `default`: 1 to 100 visible characters, no comma, not *"""


def without_defaults(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults.

    Definitions have only these, so that a new field makes no measurement stale.
    """
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    defaults = {field.name: field.default for field in fields(value)}
    return {name: it for name, it in values.items() if it != defaults[name]}


@dataclass(frozen=True)
class Endpoint:
    """Where an LLM is served on a GPU profile; fields are as in `EndpointRow`."""

    base_urls: tuple[str, ...]  # one per replica; replicas share the requests evenly
    served_model_name: str
    api_key_env: str | None = None
    ca_file: Path | None = None
    line: int | None = None  # where the sheet has it, for messages


def load_endpoints(path: str | None) -> dict[tuple[str, str], Endpoint]:
    """Read the sheet of endpoints by LLM and GPU profile; without a path there are none.

    Raises InputError: a malformed base URL, two rows for a pair or a server, no certificates.
    """
    endpoints: dict[tuple[str, str], Endpoint] = {}
    served: dict[tuple[str, str], int] = {}
    for row in load_sheet(path, EndpointRow) if path else ():
        key = (row["llm_id"], row["gpu_profile_id"])
        name = row["served_model_name"]
        urls = tuple(map(without_v1, row["base_urls"].split(",")))
        if key in endpoints:
            problem = f"line {endpoints[key].line} has {key[0]} on {key[1]} already"
            fix = "remove one row; give replicas as base URLs of one row, with commas between"
            raise row.error(problem, "gpu_profile_id", fix)
        for url in urls:
            try:
                host_and_port(url)
            except InputError as error:
                raise row.error(error.problem, "base_urls", error.fix) from None
            if (url, name) in served:
                problem = f"line {served[url, name]} has the model {name!r} of {url} already"
                fix = "name it once, with the LLM that it is and the GPU profile that it runs on"
                raise row.error(problem, "base_urls", fix)
            served[url, name] = row.line
        ca_file = Path(row["ca_file"]) if "ca_file" in row else None
        try:
            if ca_file:
                tls_context(ca_file)  # raises unless the file holds certificates
        except InputError as error:
            raise row.error(f"{ca_file}: {error.problem}", "ca_file", error.fix) from None
        endpoints[key] = Endpoint(urls, name, row.get("api_key_env"), ca_file, row.line)

    return endpoints


def check_endpoint(endpoint: Endpoint, variant: Variant, file: str | None) -> None:
    """Raise InputError unless servers that run already can be those of a variant."""
    name = f"variant {variant.variant_id!r}"
    problem = None
    if of_start := sorted(set(without_defaults(variant)) - {"variant_id", "replicas"}):
        problem = f"{name} sets {of_start[0]}, but these servers run already"
        fix = "select another variant for them in benchmarks.tsv"
    elif len(endpoint.base_urls) != variant.replicas:
        n_urls = plural(len(endpoint.base_urls), "base URL")
        problem = f"{n_urls}, but {name} has {plural(variant.replicas, 'replica')}"
        fix = "give one base URL per replica, or select a variant with as many replicas"
    if problem:
        raise InputError(problem, file=file, row=endpoint.line, field="base_urls", fix=fix)


@dataclass(frozen=True, kw_only=True)
class EngineSettings(EngineSection):
    """The `engine` part of the configuration, and the servers of the engine `endpoint`."""

    endpoint: Endpoint | None = None


def engine_settings(config: Mapping[str, Any], endpoint: Endpoint | None = None) -> EngineSettings:
    """Return the `engine` part of a configuration that was checked, for an endpoint if given."""
    values = dict(config["engine"])
    values["extra_arguments"] = tuple(values.get("extra_arguments", ()))
    if endpoint:
        values |= {"name": ENDPOINT, "endpoint": endpoint}
    return EngineSettings(**values)


def engine_facts(settings: EngineSettings) -> dict[str, Any]:
    """Return the settings that a measurement depends on, as plain data."""
    if endpoint := settings.endpoint:
        urls = list(endpoint.base_urls)
        name = endpoint.served_model_name
        return {"name": settings.name, "base_urls": urls, "served_model_name": name}
    facts = {name: getattr(settings, name) for name in (*_FACTS, "max_server_starts")}
    return facts | {"extra_arguments": list(settings.extra_arguments)}

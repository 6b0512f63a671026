"""Endpoints: servers that run already, which the pipeline measures but does not start or stop."""

from dataclasses import dataclass
from pathlib import Path

from sextant.base.errors import InputError
from sextant.base.sheets import SCHEMAS, Row, load_sheet
from sextant.base.urls import host_and_port, tls_context, without_v1
from sextant.experiment.variants import Variant, without_defaults
from sextant.pages.wording import plural

ENDPOINT = "endpoint"
"""Name of their engine."""


@dataclass(frozen=True)
class Endpoint:
    """Where an LLM is served on a GPU profile."""

    base_urls: tuple[str, ...]
    """One a replica; replicas share the requests evenly."""
    served_model_name: str
    """What the servers call the LLM."""
    api_key_env: str | None = None
    """Environment variable that holds the API key; None if no key is sent."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust for https in place of the system's."""
    line: int | None = None
    """Where the sheet has it, for messages."""


def load_endpoints(path: str | None) -> dict[tuple[str, str], Endpoint]:
    """Read the sheet of endpoints by LLM and GPU profile; without a path there are none.

    Raises InputError: a base URL that is not one, two rows for a pair or for one server, or a
    `ca_file` without certificates.
    """
    found: dict[tuple[str, str], Endpoint] = {}
    served: dict[tuple[str, str], int] = {}
    for row in load_sheet(path, SCHEMAS / "endpoints.schema.yaml") if path else ():
        key, name = (row["llm_id"], row["gpu_profile_id"]), row["served_model_name"]
        urls = tuple(without_v1(url) for url in row["base_urls"].split(","))
        if key in found:
            problem = f"line {found[key].line} has {key[0]} on {key[1]} already"
            fix = "remove one row; give replicas as base URLs of one row, with commas between"
            raise InputError(problem, file=path, row=row.line, field="gpu_profile_id", fix=fix)
        for url in urls:
            host_and_port(url, file=path, row=row.line, field="base_urls")
            if (url, name) in served:
                problem = f"line {served[url, name]} has the model {name!r} of {url} already"
                fix = "name it once, with the LLM that it is and the GPU profile that it runs on"
                raise InputError(problem, file=path, row=row.line, field="base_urls", fix=fix)
            served[url, name] = row.line
        found[key] = Endpoint(urls, name, row.get("api_key_env"), _ca_file(row, path), row.line)
    return found


def _ca_file(row: Row, sheet: str | None) -> Path | None:
    """Return the row's file of certificates, read once to see that it holds some."""
    if "ca_file" not in row:
        return None
    path = Path(row["ca_file"])
    try:
        tls_context(path)
    except InputError as error:
        problem, fix = f"{path}: {error.problem}", error.fix
        raise InputError(problem, file=sheet, row=row.line, field="ca_file", fix=fix) from None
    return path


def check_endpoint(endpoint: Endpoint, variant: Variant, file: str | None) -> None:
    """Raise InputError unless servers that run already can be those of a variant."""
    of_start = sorted(set(without_defaults(variant)) - {"variant_id", "replicas"})
    if of_start:
        problem = (
            f"variant {variant.variant_id!r} sets {of_start[0]}, but these servers run already"
        )
        fix = "select another variant for them in benchmarks.tsv"
        raise InputError(problem, file=file, row=endpoint.line, field="base_urls", fix=fix)
    if len(endpoint.base_urls) != variant.replicas:
        problem = (
            f"{plural(len(endpoint.base_urls), 'base URL')}, but variant {variant.variant_id!r} "
            f"has {plural(variant.replicas, 'replica')}"
        )
        fix = "give one base URL a replica, or select a variant with as many replicas"
        raise InputError(problem, file=file, row=endpoint.line, field="base_urls", fix=fix)

"""The commands `load` (levels of load on a running server) and `compare`."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import LimitOptions
from sextant.cli.load_options import Content, LevelOptions, RequestOptions
from sextant.cli.options import (
    PageFile,
    Printed,
    Seed,
    UsdPerHour,
    check_page,
    grouped,
    naming_options,
    print_document,
    say,
)

if TYPE_CHECKING:
    from sextant.engine.http import Target

_KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which server, and how to reach it."""

    base_url: list[str]
    """OpenAI-compatible server, http://HOST:PORT or https://HOST, with or without /v1; repeat it
    for replicas, over which requests are spread evenly."""
    model: str
    """Model name that the server answers to."""
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable that holds the server's API key; by default "
            f"{_KEY_VARIABLE}, if it is set."
        ),
    ] = None
    ca_file: Path | None = None
    """Certificates (PEM) to trust for https, of a private CA."""
    chat: Annotated[bool, typer.Option("--chat")] = False
    """/v1/chat/completions in place of /v1/completions; prompts are text."""

    def targets(self) -> "list[Target]":
        """Return the replicas. Raises InputError if a URL is not one, the variable for the key is
        not set, or the certificates cannot be read.
        """
        from sextant.base.network import without_v1
        from sextant.engine.http import Target, api_key_of

        option = "--api-key-env"
        key = api_key_of(self.api_key_env or _KEY_VARIABLE, option)
        if self.api_key_env is not None and key is None:
            # Somebody may have given the key itself.
            is_name = re.fullmatch("[A-Z][A-Z0-9_]*", self.api_key_env)
            named = self.api_key_env if is_name else "such variable"
            problem = f"the environment has no {named}"
            fix = "export it, or leave the option out if the server needs no key"
            raise InputError(problem, field=option, fix=fix)
        how = {"path": "/v1/chat/completions"} if self.chat else {}
        urls = map(without_v1, self.base_url)
        targets = [Target(url, self.model, key, self.ca_file, **how) for url in urls]
        with naming_options({}):
            for target in targets:
                target.address()
        return targets


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """What is measured, so that a recommendation can name it."""

    llm_id: str | None = None
    """LLM that the server runs; its facts are known if it is in resources/llms. By default the name
    of --hf-config (of its folder, if it is config.json), else --model."""
    hf_config: Path | None = None
    """Hugging Face config.json of the LLM, or its folder."""
    dtype: str | None = None
    """Data type of the weights as served; the config's by default."""
    gpu_profile: str | None = None
    """What one replica runs on, <n>x<gpu_id>, e.g. 2xA100-40GB."""
    usd_per_hour: UsdPerHour = None
    engine: str = "endpoint"
    """What serves, e.g. vllm, sglang or tgis; for the results."""

    def subject(self, model: str, content: Content) -> dict[str, Any]:
        """Return the ids, and the facts of LLM and GPU profile as far as they are known. Raises
        InputError if a config or a GPU profile is unknown.
        """
        from sextant.facts.gpu import profile_of_id
        from sextant.facts.llm import config_file, load_llm, name_of, shipped_config

        llm_id = self.llm_id or (name_of(self.hf_config) if self.hf_config else model)
        config = config_file(self.hf_config) if self.hf_config else shipped_config(llm_id)
        profile = None
        if self.gpu_profile is not None:
            with naming_options({None: "--gpu-profile"}):
                profile = asdict(profile_of_id(self.gpu_profile))
                profile["usd_per_hour"] = self.usd_per_hour  # no nan in JSON
        llm = asdict(load_llm(config, self.dtype)) if config else None
        return {
            "llm_id": llm_id,
            "gpu_profile_id": self.gpu_profile or "unknown",
            "workload_id": content.workload_id,
            "sampler": content.sampler,
            "prompts": content.prompts,
            "unsent_parameters": tuple(content.unsent_parameters),
            "definition": {"llm": llm, "gpu_profile": profile, **content.facts},
        }


@grouped
def load(
    *,
    server: ServerOptions,
    out: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder of the results, a cell: run.json and tables."),
    ],
    what: SubjectOptions,
    requests: RequestOptions,
    way: LevelOptions,
    limits: LimitOptions,
    seed: Seed = 0,
) -> None:
    """Load a running server and write every request.

    Afterwards: latencies, rates, goodput within the limits given, and failures by kind, as text,
    OUT/summary.json and OUT/summary.html. With --llm-id or --hf-config, and --gpu-profile, the
    results can be asked for a recommendation: sextant recommend --database OUT.
    """
    from sextant.load.run import Stopped, load_server, stoppable

    targets, limits_ms = server.targets(), limits.of_each()
    content = requests.content(server.model, server.chat)
    scenario = way.scenario(requests.replay)
    subject = what.subject(server.model, content)
    how: dict[str, Any] = {"timeout_s": way.timeout, "seed": seed, "limits_ms": limits_ms}
    with stoppable():
        sent = (targets, content.source_of, scenario)
        document, interruption = load_server(*sent, out, subject, engine=what.engine, **how)
    print_document(document)
    say(f"\nRequests: {out / 'requests.parquet'}\nPage: {out / 'summary.html'}")
    if interruption is not None:
        why = f"Stopped by {interruption}; " if isinstance(interruption, Stopped) else ""
        say(f"{why}what had ended is in {out}, not complete", err=True)
        if isinstance(interruption, Stopped):
            raise typer.Exit(interruption.exit_status)
        raise interruption
    if failed := [f"{float(x['level']):g}" for x in document.data["levels"] if not x["n_ok"]]:
        say(f"Error: no request succeeded at level {', '.join(failed)}", err=True)
        raise typer.Exit(1)


_WHAT = "Folder of a load run, or a store (.duckdb), a report (recommendations.json) or its folder."


def compare(
    a: Annotated[Path, typer.Argument(help=_WHAT)],
    b: Annotated[Path, typer.Argument(help="What to compare it with, of the same kind.")],
    printed: Printed = "text",
    out: PageFile = None,
) -> None:
    """Say what differs: figures of two load runs beyond chance, or recommendations and why."""
    check_page(printed, out)
    are_runs = [(path / "run.json").is_file() for path in (a, b)]
    if any(are_runs) and not all(are_runs):
        fix = "compare two load runs, two stores or two reports"
        raise InputError("only one of them is a load run", file=b, fix=fix)
    from sextant.report.compare import compare_answers, compare_runs

    print_document(compare_runs(a, b) if all(are_runs) else compare_answers(a, b), printed, out)

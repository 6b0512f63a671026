"""The command line's load client: levels of load on a server that runs already."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.load_levels import LevelOptions
from sextant.cli.options import (
    WORKLOAD_HELP,
    ArrivalOptions,
    MaxInput,
    MaxOutput,
    Seed,
    UsdPerHour,
    gpu_profile_facts,
    grouped,
    naming_options,
)
from sextant.cli.terminal import say

if TYPE_CHECKING:
    from sextant.engine.http import Target
    from sextant.load.measure import LevelResult
    from sextant.load.run import Subject
    from sextant.load.source import Source
    from sextant.workload.prompts import PromptSource

_KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Content:
    """What is sent."""

    source_of: Callable[[int], "Source"]
    """Makes a level's requests from its seed."""
    workload_id: str
    facts: dict[str, Any]
    """`max_input_tokens`, `max_output_tokens`, and what else is known of the requests."""
    prompts: str = "random token ids"
    sampler: str | None = None
    unsent_parameters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Which server, and how to reach it."""

    base_url: Annotated[
        list[str],
        typer.Option(
            help="OpenAI-compatible server, http://HOST:PORT or https://HOST; repeat it for "
            "replicas, over which requests are spread evenly."
        ),
    ]
    model: Annotated[str, typer.Option(help="Model name that the server answers to.")]
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable that holds the server's API key; by default "
            f"{_KEY_VARIABLE}, if it is set."
        ),
    ] = None
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) to trust for https, of a private CA.")
    ] = None

    def targets(self) -> "list[Target]":
        """Return the replicas. Raises InputError if a URL is not one, the variable for the key is
        not set, or the certificates cannot be read.
        """
        from sextant.engine.http import Target

        key = os.environ.get(self.api_key_env or _KEY_VARIABLE) or None
        if self.api_key_env is not None and key is None:
            problem = f"the environment has no {self.api_key_env}"
            fix = "export it, or leave the option out if the server needs no key"
            raise InputError(problem, field="--api-key-env", fix=fix)
        targets = [Target(url, self.model, key, self.ca_file) for url in self.base_url]
        with naming_options({}):
            for target in targets:
                target.address()
        return targets


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What is sent: requests drawn from a workload, or all of one length."""

    workload: Annotated[str | None, typer.Option(help=WORKLOAD_HELP)] = None
    input_tokens: Annotated[
        int | None, typer.Option(min=1, help="Input of every request, in place of a workload.")
    ] = None
    output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Output of every request, in place of a workload.")
    ] = None
    max_input_tokens: MaxInput = None
    max_output_tokens: MaxOutput = None
    vocab_size: Annotated[int, typer.Option(help="Prompts are token ids below this.")] = 32000
    prompts: Annotated[
        Path | None, typer.Option(help="Text to cut prompts from, in place of random token ids.")
    ] = None
    tokenizer: Annotated[
        Path | None, typer.Option(help="The LLM's tokenizer.json, for --prompts.")
    ] = None
    sampler: Annotated[
        str | None, typer.Option(help="joint (default), or independent (an ablation).")
    ] = None

    def content(self, model: str) -> Content:
        """Return what makes requests to a model. Raises InputError for options that do not go
        together, or a file that cannot be read.
        """
        lengths = (self.input_tokens, self.output_tokens)
        if (self.workload is None) == (lengths == (None, None)):
            fix = "give --workload, or both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        if (self.prompts is None) != (self.tokenizer is None):
            fix = "give both, or neither for random token ids"
            raise InputError("--prompts goes with --tokenizer", field="--prompts", fix=fix)
        made = self._fixed(model) if self.workload is None else self._drawn(model, self.workload)
        return made if self.prompts is None else replace(made, prompts=str(self.prompts))

    def _fixed(self, model: str) -> Content:
        """Return requests of one length; without texts this loads no library of data frames."""
        from sextant.load.source import ListedRequests, RandomIds

        if self.input_tokens is None or self.output_tokens is None:
            fix = "give both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        for name in ("max_input_tokens", "max_output_tokens", "sampler"):
            if getattr(self, name) is not None:
                option = "--" + name.replace("_", "-")
                problem = "requests of given lengths do not use it"
                raise InputError(problem, field=option, fix="leave it out")
        prompts = self._texts() or RandomIds(self.vocab_size)
        inputs, outputs = self.input_tokens, self.output_tokens

        def source_of(seed: int) -> ListedRequests:
            return ListedRequests(model, [inputs], [outputs], prompts, seed)

        facts = {"max_input_tokens": inputs, "max_output_tokens": outputs}
        return Content(source_of, f"{inputs}-in-{outputs}-out", facts)

    def _drawn(self, model: str, workload: str) -> Content:
        """Return requests drawn from a workload."""
        from sextant.load.source import RequestSource, unsent_parameters
        from sextant.workload.draw import open_workload
        from sextant.workload.prompts import RandomTokens
        from sextant.workload.without_trace import cap_model

        caps = {"input_tokens": self.max_input_tokens, "output_tokens": self.max_output_tokens}
        requests, clipped_fraction = cap_model(open_workload(workload), caps)
        prompts, sampler = self._texts() or RandomTokens(self.vocab_size), self.sampler or "joint"

        def source_of(seed: int) -> RequestSource:
            return RequestSource(model, requests, prompts, seed, sampler)

        longest = {f"max_{name}": int(requests.frame[name].max()) for name in caps}
        return Content(
            source_of,
            Path(workload).stem,
            facts={"workload": workload, "clipped_fraction": clipped_fraction, **longest},
            sampler=sampler,
            unsent_parameters=tuple(unsent_parameters(requests)),
        )

    def _texts(self) -> "PromptSource | None":
        """Return what cuts prompts from a text, None for random token ids."""
        if self.prompts is None or self.tokenizer is None:
            return None
        from sextant.workload.prompts import load_prompt_source

        return load_prompt_source(self.prompts, self.tokenizer)


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """What is measured, so that a recommendation can name it."""

    llm_id: Annotated[
        str | None,
        typer.Option(
            help="LLM that the server runs; its facts are known if it is in resources/llms. By "
            "default the name of --hf-config (of its folder, if it is config.json), else --model."
        ),
    ] = None
    hf_config: Annotated[
        Path | None, typer.Option(help="Hugging Face config.json of the LLM, or its folder.")
    ] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="Data type of the weights as served; the config's by default."),
    ] = None
    gpu_profile: Annotated[
        str | None,
        typer.Option(help="What one replica runs on, <n>x<gpu_id>, e.g. 2xA100-40GB."),
    ] = None
    usd_per_hour: UsdPerHour = None
    engine: Annotated[
        str, typer.Option(help="What serves, e.g. vllm, sglang or tgis; for the results.")
    ] = "endpoint"

    def subject(self, model: str, content: Content) -> "Subject":
        """Return the ids, and the facts of LLM and GPU profile as far as they are known. Raises
        InputError if a config or a GPU profile is unknown.
        """
        from sextant.llm import load_llm
        from sextant.llm.config_files import config_file, name_of, shipped_config
        from sextant.load.run import Subject

        llm_id = self.llm_id or (name_of(self.hf_config) if self.hf_config else model)
        config = config_file(self.hf_config) if self.hf_config else shipped_config(llm_id)
        return Subject(
            llm_id=llm_id,
            gpu_profile_id=self.gpu_profile or "unknown",
            workload_id=content.workload_id,
            engine=self.engine,
            sampler=content.sampler,
            prompts=content.prompts,
            unsent_parameters=content.unsent_parameters,
            facts={
                "llm": asdict(load_llm(config, self.dtype)) if config else None,
                "gpu_profile": gpu_profile_facts(self.gpu_profile, self.usd_per_hour),
                **content.facts,
            },
        )


@grouped
def load(
    *,
    server: ServerOptions,
    out: Annotated[Path, typer.Option(help="Folder of the results, a cell: run.json and tables.")],
    what: SubjectOptions,
    requests: RequestOptions,
    way: LevelOptions,
    process: ArrivalOptions,
    seed: Seed = 0,
) -> None:
    """Load a running server and write every request.

    With --llm-id or --hf-config, and --gpu-profile, the results can be asked for a recommendation:
    sextant recommend --database OUT.
    """
    from sextant.load.run import Stopped, load_server, stoppable

    targets = server.targets()
    content = requests.content(server.model)
    scenario = way.scenario(process, requests.workload, seed)
    subject = what.subject(server.model, content)
    try:
        with stoppable():
            measured = load_server(
                targets, content.source_of, scenario, out, subject, timeout_s=way.timeout, seed=seed
            )
    except Stopped as stop:
        say(f"Stopped by {stop}; what had ended is in {out}, not complete", err=True)
        raise typer.Exit(stop.exit_status) from None
    _show(measured.results, out)


def _show(results: "list[LevelResult]", out: Path) -> None:
    shown = ("level", "n_ok", "n_failed", "duration_s", "throughput_tok_s")
    lines = [[*shown, "send_lag_p99_ms", "client_lag_p99_ms"]]
    for result in results:
        figures = [result.level, result.n_ok, result.n_failed, result.duration_s]
        figures += [result.throughput_tok_s, result.send_lag_ms["p99"], result.client_lag_ms["p99"]]
        lines.append([_figure(value) for value in figures])
    for cells in lines:
        say("  ".join(f"{c:>{len(name)}}" for c, name in zip(cells, lines[0], strict=True)))
    say(f"\nRequests: {out / 'requests.parquet'}\nLevels: {out / 'run.json'}")
    failed = [result for result in results if not result.n_ok]
    if failed:
        levels = ", ".join(_figure(result.level) for result in failed)
        say(f"Error: no request succeeded at level {levels}{_first_failure(failed[0])}", err=True)
        raise typer.Exit(1)


def _first_failure(result: "LevelResult") -> str:
    """Return what became of the first request of a level at which none succeeded."""
    if not result.exchanges:
        return ": none ended"
    first = result.exchanges[0]
    return f"; the first: {first.status}{f' ({first.error})' if first.error else ''}"


def _figure(value: float | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)

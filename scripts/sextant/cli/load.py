"""The command line's load client: levels of load on a server that runs already."""

import os
from collections.abc import Callable
from dataclasses import dataclass
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
    grouped,
)
from sextant.cli.terminal import say

if TYPE_CHECKING:
    from sextant.load.measure import Source
    from sextant.load.request import Target
    from sextant.workload.prompts import PromptSource

Requests = tuple[Callable[[int], "Source"], dict[str, Any]]
"""What makes a level's requests from its seed, and what to say of them."""


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
        str, typer.Option(help="Environment variable that holds the server's API key.")
    ] = "OPENAI_API_KEY"
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) to trust for https, of a private CA.")
    ] = None

    def targets(self) -> "list[Target]":
        """Return the replicas.

        Raises:
            InputError: a URL is not one, or the certificates cannot be read.
        """
        from sextant.load.request import Target

        key = os.environ.get(self.api_key_env) or None
        targets = [Target(url, self.model, key, self.ca_file) for url in self.base_url]
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

    def requests(self, model: str) -> Requests:
        """Return what makes requests to a model.

        Raises:
            InputError: options that do not go together, or a file that cannot be read.
        """
        has_lengths = (self.input_tokens, self.output_tokens) != (None, None)
        is_half = has_lengths and None in (self.input_tokens, self.output_tokens)
        if (self.workload is None) != has_lengths or is_half:
            fix = "give --workload, or both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        if (self.prompts is None) != (self.tokenizer is None):
            fix = "give both, or neither for random token ids"
            raise InputError("--prompts goes with --tokenizer", field="--prompts", fix=fix)
        facts = {"prompt_source": "random token ids" if self.prompts is None else str(self.prompts)}
        source_of, more = self._drawn(model) if self.workload else self._fixed(model)
        return source_of, facts | more

    def _fixed(self, model: str) -> Requests:
        """Return requests of one length; without texts this loads no library of data frames."""
        from sextant.load.source import ListedRequests, RandomIds

        for name in ("max_input_tokens", "max_output_tokens", "sampler"):
            if getattr(self, name) is not None:
                option = "--" + name.replace("_", "-")
                problem = "requests of given lengths do not use it"
                raise InputError(problem, field=option, fix="leave it out")
        prompts = self._texts() or RandomIds(self.vocab_size)
        lengths = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        inputs, outputs = ([tokens or 0] for tokens in lengths.values())

        def source_of(seed: int) -> ListedRequests:
            return ListedRequests(model, inputs, outputs, prompts, seed)

        return source_of, lengths

    def _drawn(self, model: str) -> Requests:
        """Return requests drawn from a workload."""
        from sextant.load.source import RequestSource, unsent_parameters
        from sextant.workload.draw import open_workload
        from sextant.workload.prompts import RandomTokens
        from sextant.workload.without_trace import cap_model

        caps = {"input_tokens": self.max_input_tokens, "output_tokens": self.max_output_tokens}
        requests, clipped_fraction = cap_model(open_workload(self.workload or ""), caps)
        prompts, sampler = self._texts() or RandomTokens(self.vocab_size), self.sampler or "joint"
        facts = {
            "workload": self.workload,
            **{f"max_{name}": cap for name, cap in caps.items()},
            "clipped_fraction": clipped_fraction,
            "unsent_parameters": unsent_parameters(requests),
            "sampler": sampler,
        }

        def source_of(seed: int) -> RequestSource:
            return RequestSource(model, requests, prompts, seed, sampler)

        return source_of, facts

    def _texts(self) -> "PromptSource | None":
        """Return what cuts prompts from a text, None for random token ids."""
        if self.prompts is None or self.tokenizer is None:
            return None
        from sextant.workload.prompts import load_prompt_source

        return load_prompt_source(self.prompts, self.tokenizer)


@grouped
def load(
    *,
    server: ServerOptions,
    out: Annotated[Path, typer.Option(help="Folder for requests.parquet and levels.json.")],
    content: RequestOptions,
    way: LevelOptions,
    process: ArrivalOptions,
    seed: Seed = 0,
) -> None:
    """Load a running server and write every request."""
    from sextant.load.run import Stopped, load_server, stoppable

    targets = server.targets()
    source_of, facts = content.requests(server.model)
    scenario = way.scenario(process, content.workload, seed)
    try:
        with stoppable():
            rows = load_server(
                targets, source_of, scenario, out, timeout_s=way.timeout, seed=seed, **facts
            )
    except Stopped as stop:
        say(f"Stopped by {stop}; what had ended is in {out}, not complete", err=True)
        raise typer.Exit(stop.exit_status) from None
    _show(rows, out)


def _show(rows: list[dict[str, Any]], out: Path) -> None:
    shown = ("level", "n_ok", "n_failed", "duration_s", "throughput_tok_s")
    names = [*shown, "send_lag_p99_ms", "client_lag_p99_ms"]
    lines = [names]
    for row in rows:
        lags = [row["send_lag_ms"]["p99"], row["client_lag_ms"]["p99"]]
        lines.append([_figure(value) for value in [*(row[name] for name in shown), *lags]])
    for cells in lines:
        say("  ".join(f"{c:>{len(name)}}" for c, name in zip(cells, names, strict=True)))
    say(f"\nRequests: {out / 'requests.parquet'}\nLevels: {out / 'levels.json'}")
    if not all(row["n_ok"] for row in rows):
        say("Error: no request succeeded at some level; see requests.parquet", err=True)
        raise typer.Exit(1)


def _figure(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)

"""The command line's load client: levels of load on a server that runs already."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.load_levels import refuse, runs_of
from sextant.cli.workload import (
    Alphas,
    ArrivalsFrom,
    Betas,
    Every,
    MaxInput,
    MaxOutput,
    OfLlm,
    OfService,
    Over,
    Seed,
    TimeFactor,
)


def load(
    base_url: Annotated[
        list[str],
        typer.Option(
            help="OpenAI-compatible server, http://HOST:PORT or https://HOST; repeat it for "
            "replicas, over which requests are spread evenly."
        ),
    ],
    model: Annotated[str, typer.Option(help="Model name that the server answers to.")],
    out: Annotated[Path, typer.Option(help="Folder for requests.parquet and levels.json.")],
    workload: Annotated[
        str | None,
        typer.Option(
            help="Folder of a fitted workload, a published histogram (Parquet), or the name of "
            "a use case that ships."
        ),
    ] = None,
    input_tokens: Annotated[
        int | None, typer.Option(min=1, help="Input of every request, in place of a workload.")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Output of every request, in place of a workload.")
    ] = None,
    users: Annotated[
        str | None, typer.Option(help="Closed loop: concurrent users, e.g. 16 or 1,2,4.")
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Open loop, latency-critical: requests per second, e.g. 4 or 4,8,inf; inf is "
            "all at once."
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of an open loop's Gamma gaps; 1 (default) is Poisson."),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(help="Best effort: most requests in flight, e.g. 256 or 1,2,4."),
    ] = None,
    n_requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests of a level: of a batch, as many as in flight by default."
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="Open loop by an arrival process of `sextant sample`: fitted, constant, "
            "poisson, gamma, windows, varying, replay or inf."
        ),
    ] = None,
    arrivals_from: ArrivalsFrom = None,
    llm: OfLlm = None,
    service: OfService = None,
    time_factor: TimeFactor = None,
    alpha: Alphas = None,
    beta_s: Betas = None,
    over: Over = None,
    every: Every = None,
    duration: Annotated[
        float | None, typer.Option(help="Seconds of load that are measured; 120 by default.")
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds of load before; 10 by default, 0 for a batch and replays."
        ),
    ] = None,
    cooldown: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds for which load goes on after, until the measured requests have ended; "
            "5 by default for rates, 0 for users.",
        ),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(min=1, help="Open loop: most requests in flight; others wait, which counts."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=1e6, help="Seconds until a request has failed.")
    ] = 120,
    max_input_tokens: MaxInput = None,
    max_output_tokens: MaxOutput = None,
    vocab_size: Annotated[int, typer.Option(help="Prompts are token ids below this.")] = 32000,
    prompts: Annotated[
        Path | None, typer.Option(help="Text to cut prompts from, in place of random token ids.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The LLM's tokenizer.json, for --prompts.")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(help="joint (default), or independent (an ablation).")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the server's API key.")
    ] = "OPENAI_API_KEY",
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) to trust for https, of a private CA.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Load a running server and write every request."""
    import os

    from sextant.load.request import Target
    from sextant.load.run import Stopped, load_server, stoppable

    given = dict(locals())
    key = os.environ.get(api_key_env) or None
    targets = [Target(url, model, key, ca_file) for url in base_url]
    for target in targets:
        target.address()  # refuses what is no address before anything is drawn
    source_of, request_facts = _requests(given)
    runs, scenario = runs_of(given)
    try:
        with stoppable():
            rows = load_server(
                targets,
                source_of,
                runs,
                out,
                timeout_s=timeout,
                seed=seed,
                **request_facts,
                scenario=scenario | {"timeout_s": timeout},
            )
    except Stopped as stop:
        typer.echo(f"Stopped by {stop}; what had ended is in {out}, not complete", err=True)
        raise typer.Exit(stop.exit_status) from None
    _show(rows, out)


def _show(rows: list[dict], out: Path) -> None:
    shown = ("level", "n_ok", "n_failed", "duration_s", "throughput_tok_s")
    names = [*shown, "send_lag_p99_ms", "client_lag_p99_ms"]
    lines = [names]
    for row in rows:
        lags = [row["send_lag_ms"]["p99"], row["client_lag_ms"]["p99"]]
        lines.append([_figure(value) for value in [*(row[name] for name in shown), *lags]])
    for cells in lines:
        typer.echo("  ".join(f"{c:>{len(name)}}" for c, name in zip(cells, names, strict=True)))
    typer.echo(f"\nRequests: {out / 'requests.parquet'}\nLevels: {out / 'levels.json'}")
    if not all(row["n_ok"] for row in rows):
        typer.echo("Error: no request succeeded at some level; see requests.parquet", err=True)
        raise typer.Exit(1)


def _figure(value: float | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def _requests(given: dict[str, Any]):
    """Return what makes a level's requests from its seed, and what to say of them."""
    workload, lengths = given["workload"], (given["input_tokens"], given["output_tokens"])
    has_lengths = lengths != (None, None)
    if (workload is None) != has_lengths or (has_lengths and None in lengths):
        fix = "give --workload, or both --input-tokens and --output-tokens"
        raise InputError("what to send is not clear", field="--workload", fix=fix)
    prompts, tokenizer = given["prompts"], given["tokenizer"]
    if (prompts is None) != (tokenizer is None):
        fix = "give both, or neither for random token ids"
        raise InputError("--prompts goes with --tokenizer", field="--prompts", fix=fix)
    facts = {"prompt_source": "random token ids" if prompts is None else str(prompts)}
    source_of, more = _fixed(given) if has_lengths else _drawn(given)
    return source_of, facts | more


def _fixed(given: dict[str, Any]):
    """Return requests of one length; without texts this loads no library of data frames."""
    from sextant.load.source import ListedRequests, RandomIds

    for name in ("max_input_tokens", "max_output_tokens", "sampler"):
        refuse(given, name, "requests of given lengths have no use for it")
    prompts = RandomIds(given["vocab_size"])
    if given["prompts"] is not None:
        from sextant.workload.prompts import load_prompt_source

        prompts = load_prompt_source(given["prompts"], given["tokenizer"])
    lengths = {name: given[name] for name in ("input_tokens", "output_tokens")}

    def source_of(seed: int) -> ListedRequests:
        return ListedRequests(given["model"], *([n] for n in lengths.values()), prompts, seed)

    return source_of, lengths


def _drawn(given: dict[str, Any]):
    """Return requests drawn from a workload."""
    from sextant.load.source import RequestSource, unsent_parameters
    from sextant.workload.adopt import cap_model
    from sextant.workload.draw import open_workload
    from sextant.workload.prompts import RandomTokens, load_prompt_source

    caps = {name: given[f"max_{name}"] for name in ("input_tokens", "output_tokens")}
    requests, clipped_fraction = cap_model(open_workload(given["workload"]), caps)
    prompts = (
        RandomTokens(given["vocab_size"])
        if given["prompts"] is None
        else load_prompt_source(given["prompts"], given["tokenizer"])
    )
    sampler = given["sampler"] or "joint"
    facts = {
        "workload": given["workload"],
        **{f"max_{name}": cap for name, cap in caps.items()},
        "clipped_fraction": clipped_fraction,
        "unsent_parameters": unsent_parameters(requests),
        "sampler": sampler,
    }

    def source_of(seed: int) -> RequestSource:
        return RequestSource(given["model"], requests, prompts, seed, sampler)

    return source_of, facts

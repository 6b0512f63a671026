"""The command `load`: levels of load on a running server."""

import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.api.groups import (
    WORKLOAD_HELP,
    MaxInput,
    MaxOutput,
    Seed,
    naming_options,
    numbers,
    option_of,
    refuse,
    time_option,
)
from sextant.api.question_options import LimitOptions
from sextant.base.errors import InputError
from sextant.cli.printing import grouped, print_document, say

if TYPE_CHECKING:
    import numpy as np

    from sextant.engine.http import ServerAddress
    from sextant.experiment.scenarios import Scenario
    from sextant.load.source import Draw, Form, Prompts, Text

    Content = tuple[Draw, dict[str, Any]]

_KEY_VARIABLE = "OPENAI_API_KEY"
_DURATION_S = 120.0
_WARMUP_S = 10.0
_COOLDOWN_S = 5.0
_WAYS = {"users": "closed_loop", "request_rate": "open_loop", "batch": "batch"}
_OF_A_WORKLOAD = ("max_input_tokens", "max_output_tokens")


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """Which server, and how to reach it."""

    base_url: list[str]
    """OpenAI-compatible server, http://HOST:PORT or https://HOST, with or without /v1; repeat it
    for replicas, over which requests are spread evenly."""
    model: str  #: Model name that the server answers to.
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable that holds the server's API key; by default "
            f"{_KEY_VARIABLE}, if it is set."
        ),
    ] = None
    ca_file: Path | None = None  #: Certificates (PEM) to trust for https, of a private CA.
    chat: Annotated[bool, typer.Option("--chat")] = False
    """/v1/chat/completions in place of /v1/completions; prompts are text."""

    def targets(self) -> "list[ServerAddress]":
        """Return the replicas. Raises InputError for a wrong URL, variable or certificate."""
        from sextant.base.network import without_v1
        from sextant.engine.http import ServerAddress, api_key_of

        option = "--api-key-env"
        key = api_key_of(self.api_key_env or _KEY_VARIABLE, option)
        if self.api_key_env is not None and key is None:
            # Somebody may have given the key itself.
            is_name = re.fullmatch("[A-Z][A-Z0-9_]*", self.api_key_env)
            named = self.api_key_env if is_name else "such variable"
            fix = "export it, or leave the option out if the server needs no key"
            raise InputError(f"the environment has no {named}", field=option, fix=fix)
        if not self.model.isprintable():
            problem = f"{self.model!r} is no name: it has control characters or broken letters"
            raise InputError(problem, field="--model", fix="give the name that the server lists")
        how = {"path": "/v1/chat/completions"} if self.chat else {}
        urls = map(without_v1, self.base_url)
        targets = [ServerAddress(url, self.model, key, self.ca_file, **how) for url in urls]
        with naming_options({}):
            for target in targets:
                target.address()
        return targets


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """How load is put on the server, and for how long."""

    users: str | None = None  #: Closed loop: concurrent users, e.g. 16 or 1,2,4.
    request_rate: str | None = None
    """Open loop, latency-critical: requests per second, e.g. 4 or 4,8,inf; inf is all at once."""
    burstiness: float | None = None  #: Shape of an open loop's Gamma gaps; 1 (default) is Poisson.
    batch: str | None = None  #: Best effort: most requests in flight, e.g. 256 or 1,2,4.
    n_requests: Annotated[int | None, typer.Option(min=1)] = None
    """Requests of a level: of a batch, as many as in flight by default."""
    time_factor: float | None = None  #: Factor on all gaps of --replay; 0.5 doubles the rate.
    duration: Annotated[float | None, time_option()] = None
    """Time of load that is measured; 120s by default."""
    warmup: Annotated[float | None, time_option()] = None
    """Time of load before; 10s by default, 0 for a batch, replays and --n-requests."""
    cooldown: Annotated[float | None, time_option()] = None
    """Time for which load goes on after, until the measured requests have ended; 5s by default
    for rates, 0 for users."""
    max_in_flight: Annotated[int | None, typer.Option(min=1)] = None
    """Open loop: most requests in flight; others wait, which counts."""
    timeout: Annotated[float, time_option(0.001, 1e6)] = 120
    """Time until a request has failed."""

    def scenario(self, replay: Path | None) -> "Scenario":
        """Return the scenario that is asked for: by default the times of the trace `replay`, with
        their mean rate as level. Raises InputError for no way to put load on it, or several."""
        from sextant.experiment.scenarios import OpenLoop, scenario_of

        chosen = [name for name in _WAYS if getattr(self, name) is not None]
        if not chosen and replay is not None:
            from sextant.workload.draw import ArrivalParameters, chosen_arrivals

            parameters = ArrivalParameters(trace=replay, time_factor=self.time_factor)
            arrivals = chosen_arrivals("replay", None, parameters)
            with naming_options({"levels": "--replay"}):
                fields = self._stated(_COOLDOWN_S, ends_itself=True)
                scenario = OpenLoop(levels=(1.0,), arrivals=arrivals, **fields)
                # The mean rate of the requests that the schedule will send.
                times = arrivals.times(n=scenario.n_requests, duration_s=scenario.extent_s)
                lasting_s = scenario.extent_s or (float(times[-1]) if len(times) else 0.0)
                rate_rps = len(times) / lasting_s if lasting_s else math.inf
                return replace(scenario, levels=(rate_rps,))
        if self.time_factor is not None:
            raise InputError("only --replay has times", field="--time-factor", fix="leave it out")
        if len(chosen) != 1:
            fix = "give one of --users, --request-rate and --batch"
            raise InputError("how to load the server is not clear", field="--users", fix=fix)
        kind = _WAYS[chosen[0]]
        option = option_of(chosen[0])
        with naming_options({"levels": option}):
            cooldown_s = 0.0 if kind == "closed_loop" else _COOLDOWN_S
            fields = self._stated(cooldown_s, ends_itself=kind == "batch")
            fields["levels"] = numbers(getattr(self, chosen[0]), option)
            return scenario_of({"kind": kind, **fields})

    def _stated(self, cooldown_s: float, *, ends_itself: bool) -> dict[str, Any]:
        """Return the fields of a scenario that are stated, and the command's defaults."""
        times = {"duration": _DURATION_S, "warmup": _WARMUP_S, "cooldown": cooldown_s}
        has_defaults = not ends_itself and self.n_requests is None
        fields: dict[str, Any] = {"timeout_s": self.timeout}
        for name, default in times.items():
            value = getattr(self, name)
            fields[f"{name}_s"] = default if value is None and has_defaults else value
        for name in ("burstiness", "n_requests", "max_in_flight"):
            fields[name] = getattr(self, name)
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What is sent: requests drawn from a workload, those of a trace, or all of one length."""

    workload: Annotated[str | None, typer.Option(help=WORKLOAD_HELP)] = None
    replay: Path | None = None
    """Normalised trace, in place of a workload: its requests in their order, whose prompts begin
    alike as far as its hash_ids do. At its own times, turns of sessions when they were answered
    before, unless --users, --request-rate or --batch say others."""
    input_tokens: Annotated[int | None, typer.Option(min=1)] = None
    """Input of every request, in place of a workload."""
    output_tokens: Annotated[int | None, typer.Option(min=1)] = None
    """Output of every request, in place of a workload."""
    max_input_tokens: MaxInput = None
    max_output_tokens: MaxOutput = None
    vocab_size: Annotated[int, typer.Option(max=2**31 - 1)] = 32000
    """Prompts are token ids below this."""
    prompts: Path | None = None  #: Text to cut prompts from, in place of random token ids.
    tokenizer: Path | None = None  #: The LLM's tokenizer.json, for --prompts and --text.
    text: Annotated[bool, typer.Option("--text")] = False
    """Prompts as text, for servers that take no token ids: of exact length with --tokenizer, else
    of as many words, whose tokens the server counts."""
    allow_eos: Annotated[bool, typer.Option("--allow-eos")] = False
    """Answers may stop early. Only standard fields are sent: also for servers that do not know
    ignore_eos and min_tokens."""

    def content(self, form: "Form") -> "Content":
        """Return what draws requests, and the fields of `CellRun` that say which these are, with
        `max_input_tokens` and `max_output_tokens` in its definition. Raises InputError for options
        that do not go together."""
        lengths = [n for n in (self.input_tokens, self.output_tokens) if n is not None]
        if (self.workload is not None) + (self.replay is not None) + bool(lengths) != 1:
            fix = "give --workload, --replay, or both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        is_text = self.text or form.is_chat
        if self.prompts and not self.tokenizer:
            fix = "give both, or neither for random token ids"
            raise InputError("--prompts goes with --tokenizer", field="--prompts", fix=fix)
        if self.tokenizer and not (self.prompts or is_text):
            fix = "give --prompts or --text, or leave it out for random token ids"
            raise InputError("nothing needs a tokenizer", field="--tokenizer", fix=fix)
        if self.workload is not None:
            draw, fields = self._drawn(self.workload, is_text)
        elif self.replay is not None:
            draw, fields = self._replayed(self.replay, is_text)
        else:
            draw, fields = self._fixed(lengths, is_text)
        name = "random token ids"
        if self.prompts:
            name = f"{self.prompts}{' as text' if is_text else ''}"
        elif is_text:
            name = "text of words" if self.tokenizer else "text of words, one for a token"
        facts = fields["definition"] | asdict(form)
        return draw, {**fields, "definition": facts, "prompts": name + fields.get("prompts", "")}

    def _fixed(self, lengths: list[int], is_text: bool) -> "Content":
        """Return requests of one length; without texts this loads no library of data frames."""
        from sextant.load.source import draw_in_order
        from sextant.workload.prompts import RandomTokens

        if len(lengths) < 2:
            fix = "give both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        refuse(self, "requests of given lengths do not use it", *_OF_A_WORKLOAD)
        prompts = self._texts(is_text) or RandomTokens(self.vocab_size)
        inputs, outputs = lengths
        facts = {"max_input_tokens": inputs, "max_output_tokens": outputs}
        fields = {"workload_id": f"{inputs}-in-{outputs}-out", "definition": facts}
        return draw_in_order([inputs], [outputs], prompts), fields

    def _replayed(self, trace: Path, is_text: bool) -> "Content":
        from sextant.load.source import N_WORDS, Texts, replayed
        from sextant.workload.prompts import FIRST_TOKEN_ID, RandomTokens
        from sextant.workload.shared_blocks import read_shared_blocks

        refuse(self, "requests of a trace are as they are", *_OF_A_WORKLOAD, "prompts")
        blocks = read_shared_blocks(trace)
        texts = self._texts(is_text)
        # The input of a failed request may not be known.
        blocks = replace(blocks, input_tokens=blocks.input_tokens.clip(1))
        below = N_WORDS if is_text else RandomTokens(self.vocab_size).n_ids

        def prompt_of(request: int, *seed: int) -> "np.ndarray | Text":
            drawn = blocks.draws(request, below, *seed).astype("int32")
            return texts.of_words(drawn) if isinstance(texts, Texts) else drawn + FIRST_TOKEN_ID

        facts = {
            "replay": str(trace),
            "shared_block_tokens": blocks.block_tokens or None,
            "max_input_tokens": int(blocks.input_tokens.max()),
            "max_output_tokens": int(blocks.output_tokens.max()),
        }
        shared = ", alike as far as hash_ids are" if blocks.block_tokens else ""
        fields = {"workload_id": trace.stem, "definition": facts, "prompts": shared}
        return replayed(blocks, prompt_of), fields

    def _drawn(self, workload: str, is_text: bool) -> "Content":
        from sextant.load.source import drawn_from, unsent_parameters
        from sextant.workload.draw import open_workload
        from sextant.workload.fit import cap_model
        from sextant.workload.prompts import RandomTokens
        from sextant.workload.request_model import LengthCaps

        caps = LengthCaps(
            max_input_tokens=self.max_input_tokens, max_output_tokens=self.max_output_tokens
        )
        requests, clipped_fraction = cap_model(open_workload(workload), caps)
        draw = drawn_from(requests, self._texts(is_text) or RandomTokens(self.vocab_size))
        facts: dict[str, Any] = {"workload": workload, "clipped_fraction": clipped_fraction}
        facts |= {f"max_{name}": int(requests.frame[name].max()) for name in caps.by_column()}
        fields = {"workload_id": Path(workload).stem, "definition": facts, "sampler": "joint"}
        return draw, {**fields, "unsent_parameters": tuple(unsent_parameters(requests))}

    def _texts(self, is_text: bool) -> "Prompts | None":
        """Return what makes prompts from or as text, None for random token ids."""
        if not (self.tokenizer or is_text):
            return None
        from sextant.load.source import Texts
        from sextant.workload.prompts import load_prompt_source, load_tokenizer

        tokenizer = load_tokenizer(self.tokenizer) if self.tokenizer else None
        ids = load_prompt_source(self.prompts, tokenizer) if self.prompts and tokenizer else None
        return Texts(tokenizer, ids) if is_text else ids


@dataclass(frozen=True, kw_only=True)
class SubjectOptions:
    """What is measured, so that a recommendation can name it."""

    llm: str | None = None
    """LLM that the server runs; its facts are known if it is in resources/llms. By default the name
    of --hf-config (of its folder, if it is config.json), else --model."""
    hf_config: Path | None = None  #: Hugging Face config.json of the LLM, or its folder.
    dtype: str | None = None  #: Data type of the weights as served; the config's by default.
    gpu_profile: str | None = None  #: What one replica runs on, <n>x<gpu_id>, e.g. 2xA100-40GB.
    usd_per_hour: Annotated[float | None, typer.Option(min=0)] = None  #: Price of this GPU profile.
    engine: str = "endpoint"  #: What serves, e.g. vllm, sglang or tgis; for the results.

    def subject(self, model: str) -> dict[str, Any]:
        """Return the ids, and the facts of LLM and GPU profile as far as they are known."""
        from sextant.facts.gpu import profile_of_id
        from sextant.facts.llm import config_file, load_llm, name_of, shipped_config

        llm_id = self.llm or (name_of(self.hf_config) if self.hf_config else model)
        config = config_file(self.hf_config) if self.hf_config else shipped_config(llm_id)
        profile = None
        if self.gpu_profile is not None:
            with naming_options({None: "--gpu-profile"}):
                profile = asdict(profile_of_id(self.gpu_profile))
                profile["usd_per_hour"] = self.usd_per_hour  # no nan in JSON
        llm = asdict(load_llm(config, self.dtype)) if config else None
        definition = {"llm": llm, "gpu_profile": profile}
        profile_id = self.gpu_profile or "unknown"
        return {"llm_id": llm_id, "gpu_profile_id": profile_id, "definition": definition}


@grouped
def load(
    *,
    server: EndpointOptions,
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
    OUT/summary.json and OUT/summary.html. With --llm or --hf-config, and --gpu-profile, the
    results can be asked for a recommendation: sextant recommend --database OUT.
    """
    from sextant.load.run import LoadSubject, RequestPlan, Stopped, load_server, stoppable
    from sextant.load.source import Form

    targets = server.targets()
    limits_ms = limits.of_each()
    form = Form(server.chat, requests.allow_eos)
    draw, content = requests.content(form)
    scenario = way.scenario(requests.replay)
    facts = what.subject(server.model)
    facts |= {**content, "definition": facts["definition"] | content["definition"]}
    subject = LoadSubject(engine=what.engine, **facts)
    plan = RequestPlan(draw, form, seed)
    with stoppable():
        document, interruption = load_server(
            targets, plan, scenario, out, subject, timeout_s=way.timeout, limits_ms=limits_ms
        )
    print_document(document)
    say(f"\nRequests: {out / 'requests.parquet'}\nPage: {out / 'summary.html'}")
    if interruption is not None:
        why = f"Stopped by {interruption}; " if isinstance(interruption, Stopped) else ""
        say(f"{why}what had ended is in {out}, not complete", err=True)
        if isinstance(interruption, Stopped):
            raise typer.Exit(interruption.exit_status)
        raise interruption
    if failed := [f"{float(x['level']):g}" for x in document.data["levels"] if not x["n_ok"]]:
        why = f"no request that is measured succeeded at level {', '.join(failed)}"
        say(f"Error: {why} (see --warmup and --duration)", err=True)
        raise typer.Exit(1)

"""Options of `sextant load`: how load is put on the server, and what is sent."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.options import (
    WORKLOAD_HELP,
    MaxInput,
    MaxOutput,
    naming_options,
    numbers,
)

if TYPE_CHECKING:
    import numpy as np

    from sextant.experiment.scenarios import Scenario
    from sextant.load.source import Source, Text, Texts
    from sextant.workload.prompts import PromptSource

_DURATION_S, _WARMUP_S, _COOLDOWN_S = 120.0, 10.0, 5.0
_WAYS = {"--users": "closed_loop", "--request-rate": "open_loop", "--batch": "batch"}


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """How load is put on the server, and for how long."""

    users: str | None = None
    """Closed loop: concurrent users, e.g. 16 or 1,2,4."""
    request_rate: str | None = None
    """Open loop, latency-critical: requests per second, e.g. 4 or 4,8,inf; inf is all at once."""
    burstiness: float | None = None
    """Shape of an open loop's Gamma gaps; 1 (default) is Poisson."""
    batch: str | None = None
    """Best effort: most requests in flight, e.g. 256 or 1,2,4."""
    n_requests: Annotated[int | None, typer.Option(min=1)] = None
    """Requests of a level: of a batch, as many as in flight by default."""
    time_factor: float | None = None
    """Factor on all gaps of --replay; 0.5 doubles the rate."""
    duration: float | None = None
    """Seconds of load that are measured; 120 by default."""
    warmup: Annotated[float | None, typer.Option(min=0)] = None
    """Seconds of load before; 10 by default, 0 for a batch, replays and --n-requests."""
    cooldown: Annotated[float | None, typer.Option(min=0)] = None
    """Seconds for which load goes on after, until the measured requests have ended; 5 by default
    for rates, 0 for users."""
    max_in_flight: Annotated[int | None, typer.Option(min=1)] = None
    """Open loop: most requests in flight; others wait, which counts."""
    timeout: Annotated[float, typer.Option(min=0.001, max=1e6)] = 120
    """Seconds until a request has failed."""

    def scenario(self, replay: Path | None) -> "Scenario":
        """Return the scenario that is asked for: by default the times of the trace `replay`, with
        their mean rate as level.

        Raises InputError for no way to put load on the server or several, or for an option that
        the way does not use or lacks.
        """
        from sextant.experiment.scenarios import OpenLoop, scenario_of

        texts = {"--users": self.users, "--request-rate": self.request_rate, "--batch": self.batch}
        chosen = {way: text for way, text in texts.items() if text is not None}
        if not chosen and replay is not None:
            from sextant.workload.draw import chosen_arrivals

            of_trace = {"trace": replay, "time_factor": self.time_factor}
            arrivals = chosen_arrivals("replay", None, **of_trace)
            with naming_options({"levels": "--replay"}):
                given = self._given(_COOLDOWN_S, ends_itself=True)
                scenario = OpenLoop(levels=(1.0,), arrivals=arrivals, **given)
                # The mean rate of the requests that the schedule will send.
                times = arrivals.times(n=scenario.n_requests, duration_s=scenario.extent_s)
                lasting_s = scenario.extent_s or (float(times[-1]) if len(times) else 0.0)
                rate_rps = len(times) / lasting_s if lasting_s else math.inf
                return replace(scenario, levels=(rate_rps,))
        if self.time_factor is not None:
            fix = "leave it out"
            raise InputError("only --replay has times", field="--time-factor", fix=fix)
        if len(chosen) != 1:
            fix = "give one of --users, --request-rate and --batch"
            raise InputError("how to load the server is not clear", field="--users", fix=fix)
        ((way, text),) = chosen.items()
        kind = _WAYS[way]
        with naming_options({"levels": way}):
            cooldown_s = 0.0 if kind == "closed_loop" else _COOLDOWN_S
            given = self._given(cooldown_s, ends_itself=kind == "batch")
            return scenario_of({"kind": kind, "levels": numbers(text, way)} | given)

    def _given(self, cooldown_s: float, *, ends_itself: bool) -> dict[str, Any]:
        """Return the fields of a scenario that were given, and the command's defaults."""
        given = {
            "duration_s": self.duration,
            "warmup_s": self.warmup,
            "cooldown_s": self.cooldown,
            "burstiness": self.burstiness,
            "n_requests": self.n_requests,
            "max_in_flight": self.max_in_flight,
        }
        defaults = {"timeout_s": self.timeout}
        if not ends_itself and self.n_requests is None:
            defaults |= {"duration_s": _DURATION_S, "warmup_s": _WARMUP_S, "cooldown_s": cooldown_s}
        return defaults | {name: value for name, value in given.items() if value is not None}


_OF_A_WORKLOAD = ("max_input_tokens", "max_output_tokens")


@dataclass(frozen=True)
class Content:
    """What is sent."""

    source_of: Callable[[int], "Source"]
    """Makes a level's requests from its seed."""
    workload_id: str
    facts: dict[str, Any]
    """`max_input_tokens`, `max_output_tokens`, and what else is known of the requests."""
    prompts: str = ""
    sampler: str | None = None
    unsent_parameters: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """What is sent: requests drawn from a workload, those of a trace, or all of one length."""

    workload: Annotated[str | None, typer.Option(help=WORKLOAD_HELP)] = None
    replay: Path | None = None
    """Normalised trace, in place of a workload: its requests in their order, whose prompts begin
    alike as far as its hash_ids do. At its own times, unless --users, --request-rate or --batch say
    others."""
    input_tokens: Annotated[int | None, typer.Option(min=1)] = None
    """Input of every request, in place of a workload."""
    output_tokens: Annotated[int | None, typer.Option(min=1)] = None
    """Output of every request, in place of a workload."""
    max_input_tokens: MaxInput = None
    max_output_tokens: MaxOutput = None
    vocab_size: Annotated[int, typer.Option(max=2**31 - 1)] = 32000
    """Prompts are token ids below this."""
    prompts: Path | None = None
    """Text to cut prompts from, in place of random token ids."""
    tokenizer: Path | None = None
    """The LLM's tokenizer.json, for --prompts and --text."""
    text: Annotated[bool, typer.Option("--text")] = False
    """Prompts as text, for servers that take no token ids: of exact length with --tokenizer, else
    of as many words, whose tokens the server counts."""
    allow_eos: Annotated[bool, typer.Option("--allow-eos")] = False
    """Answers may stop early. Only standard fields are sent: also for servers that do not know
    ignore_eos and min_tokens."""

    def content(self, model: str, is_chat: bool) -> Content:
        """Return what makes requests to a model. Raises InputError for options that do not go
        together, or a file that cannot be read.
        """
        has_lengths = (self.input_tokens, self.output_tokens) != (None, None)
        if (self.workload is not None) + (self.replay is not None) + has_lengths != 1:
            fix = "give --workload, --replay, or both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        from sextant.load.source import Form

        is_text = self.text or is_chat
        if self.prompts and not self.tokenizer:
            fix = "give both, or neither for random token ids"
            raise InputError("--prompts goes with --tokenizer", field="--prompts", fix=fix)
        if self.tokenizer and not (self.prompts or is_text):
            fix = "give --prompts or --text, or leave it out for random token ids"
            raise InputError("nothing needs a tokenizer", field="--tokenizer", fix=fix)
        if self.workload is not None:
            made = self._drawn(model, self.workload, is_text)
        elif self.replay is not None:
            made = self._replayed(model, self.replay, is_text)
        else:
            made = self._fixed(model, is_text)
        form = Form(is_chat, self.allow_eos)

        def source_of(seed: int) -> "Source":
            source = made.source_of(seed)
            source.form = form
            return source

        facts = made.facts | {"is_chat": is_chat, "may_stop": self.allow_eos}
        prompts = made.prompts or self._prompts_name(is_text)
        return replace(made, source_of=source_of, facts=facts, prompts=prompts)

    def _prompts_name(self, is_text: bool) -> str:
        if self.prompts:
            return f"{self.prompts}{' as text' if is_text else ''}"
        if not is_text:
            return "random token ids"
        return "text of words" if self.tokenizer else "text of words, one for a token"

    def _fixed(self, model: str, is_text: bool) -> Content:
        """Return requests of one length; without texts this loads no library of data frames."""
        from sextant.load.source import ListedRequests, RandomIds

        if self.input_tokens is None or self.output_tokens is None:
            fix = "give both --input-tokens and --output-tokens"
            raise InputError("what to send is not clear", field="--workload", fix=fix)
        self._refuse("requests of given lengths do not use it", *_OF_A_WORKLOAD)
        prompts = self._texts(is_text) or RandomIds(self.vocab_size)
        inputs, outputs = self.input_tokens, self.output_tokens

        def source_of(seed: int) -> ListedRequests:
            return ListedRequests(model, [inputs], [outputs], prompts, seed)

        facts = {"max_input_tokens": inputs, "max_output_tokens": outputs}
        return Content(source_of, f"{inputs}-in-{outputs}-out", facts)

    def _refuse(self, problem: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                option = "--" + name.replace("_", "-")
                raise InputError(problem, field=option, fix="leave it out")

    def _replayed(self, model: str, trace: Path, is_text: bool) -> Content:
        """Return the requests of a trace."""
        from sextant.load.source import FIRST_TOKEN_ID, N_WORDS, RandomIds, ReplayedRequests, Texts
        from sextant.workload.shared_blocks import read_blocks

        self._refuse("requests of a trace are as they are", *_OF_A_WORKLOAD, "prompts")
        blocks, texts = read_blocks(trace), self._texts(is_text)
        # The input of a failed request may not be known.
        blocks = replace(blocks, input_tokens=blocks.input_tokens.clip(1))
        below = N_WORDS if is_text else RandomIds(self.vocab_size).n_ids

        def prompt_of(request: int, *seed: int) -> "np.ndarray | Text":
            drawn = blocks.draws(request, below, *seed).astype("int32")
            return texts.of_words(drawn) if isinstance(texts, Texts) else drawn + FIRST_TOKEN_ID

        def source_of(seed: int) -> ReplayedRequests:
            return ReplayedRequests(model, blocks, prompt_of, seed)

        longest = {
            f"max_{name}": int(getattr(blocks, name).max())
            for name in ("input_tokens", "output_tokens")
        }
        facts = {"replay": str(trace), "shared_block_tokens": blocks.block_tokens or None}
        shared = ", alike as far as hash_ids are" if blocks.block_tokens else ""
        prompts = self._prompts_name(is_text) + shared
        return Content(source_of, trace.stem, facts=facts | longest, prompts=prompts)

    def _drawn(self, model: str, workload: str, is_text: bool) -> Content:
        """Return requests drawn from a workload."""
        from sextant.load.source import RequestSource, unsent_parameters
        from sextant.workload.draw import open_workload
        from sextant.workload.fit import cap_model
        from sextant.workload.prompts import RandomTokens

        caps = {"input_tokens": self.max_input_tokens, "output_tokens": self.max_output_tokens}
        requests, clipped_fraction = cap_model(open_workload(workload), caps)
        prompts = self._texts(is_text) or RandomTokens(self.vocab_size)

        def source_of(seed: int) -> RequestSource:
            return RequestSource(model, requests, prompts, seed)

        longest = {f"max_{name}": int(requests.frame[name].max()) for name in caps}
        return Content(
            source_of,
            Path(workload).stem,
            facts={"workload": workload, "clipped_fraction": clipped_fraction, **longest},
            sampler="joint",
            unsent_parameters=tuple(unsent_parameters(requests)),
        )

    def _texts(self, is_text: bool) -> "PromptSource | Texts | None":
        """Return what makes prompts from or as text, None for random token ids."""
        if not (self.tokenizer or is_text):
            return None
        from sextant.load.source import Texts
        from sextant.workload.prompts import load_prompt_source, load_tokenizer

        tokenizer = load_tokenizer(self.tokenizer) if self.tokenizer else None
        ids = load_prompt_source(self.prompts, tokenizer) if self.prompts and tokenizer else None
        return Texts(tokenizer, ids) if is_text else ids

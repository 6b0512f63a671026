"""The servers, and their latencies, that can be at all: the rest is a slip, most often of a unit.

The bounds are far from every measurement that is known (`tests/unit/ask/test_probe_bounds.py` has
all points that ship between them). Drafts, sparse experts, prefix caches and fewer bits make a
server fast, so prompts have no bound of their own: a cache may hold all but one token of each.
Clients that get several tokens at once report gaps of hundredths of a millisecond between them:
these are no time per token, and TPOT is asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sextant.base.sheets import Row
from sextant.facts.answer_times import answer_ms
from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.words import number
from sextant.points.frame import LATENCIES, LENGTHS

_LEAST_TTFT_MS = 1.0
"""A request passes HTTP, tokenizer, scheduler and one step; the least that ships is 16 ms."""
_LEAST_ITL_MS = 0.1
"""10,000 tokens a second of one answer; the least that ships is 2.3 ms."""
_LEAST_WEIGHT_BYTES = 0.25
"""Of a parameter, at 2 bits: fewer than any engine serves."""
_MOST_TOKENS_PER_STEP = 16
"""Of one answer, by speculation: twice of what drafts are accepted at best."""
_MOST_TTFT_MS = 3.6e6
"""An hour; the most that ships, of an overloaded server, is 462 s."""
_MOST_ITL_MS = 6e4
"""A minute; the most that ships, the 99th percentile of a crowded server, is 14 s."""
_MOST_E2E_MS = 8.64e7
"""A day: long answers take hours."""


def check_fits(row: Row, llm: LLM, gpu_profile: GPUProfile) -> None:
    """Raise InputError where the weights alone are more than the memory of a row's GPUs."""
    weights_gib = llm.weight_bytes / GIB
    memory_gib = gpu_profile.devices.memory_bytes / GIB
    if weights_gib <= memory_gib:
        return
    problem = (
        f"no server of this LLM can be there: its weights take {number(weights_gib)} GiB, the GPUs "
        f"have {number(memory_gib)} GiB"
    )
    fix = "name the GPUs that were measured, or the precision that was served (--dtype)"
    raise row.error(problem, "gpu_profile_id", fix)


def check_lengths(row: Row, llm: LLM, asked_lengths: Sequence[float]) -> None:
    """Raise InputError where a row's requests are longer than the LLM's context.

    Where a row has no lengths, the asked ones count; they are checked for themselves.
    """
    stated = [name for name in LENGTHS if row.get(name) is not None]
    given = dict(zip(LENGTHS, asked_lengths, strict=True))
    tokens = sum(row.get(name) or given[name] for name in LENGTHS)
    if not stated or tokens <= llm.context_tokens:
        return
    problem = (
        f"no request of this LLM has {number(float(tokens))} tokens, input and output: its context "
        f"has {number(float(llm.context_tokens))}"
    )
    fix = "give the mean tokens of a request, or a config.json with a longer context"
    raise row.error(problem, ", ".join(stated), fix)


@dataclass(frozen=True)
class PossibleLatencies:
    """The least and the most, in ms, of each latency of requests, by the names of `LATENCIES`."""

    least_ms: Mapping[str, float]
    most_ms: Mapping[str, float]

    @classmethod
    def of(
        cls, llm: LLM, gpu_profile: GPUProfile, input_tokens: float, output_tokens: float
    ) -> "PossibleLatencies":
        """Return what replicas of an LLM can give requests of these mean lengths.

        A step reads the matrices that a token is multiplied with once, from the memory of all GPUs
        at their full bandwidth.
        """
        bytes_read = _LEAST_WEIGHT_BYTES * llm.n_flop_parameters
        step_ms = bytes_read / (gpu_profile.n_gpus * gpu_profile.gpu.memory_bandwidth_gb_s * 1e6)
        ttft_ms = max(step_ms, _LEAST_TTFT_MS)
        itl_ms = max(step_ms / _MOST_TOKENS_PER_STEP, _LEAST_ITL_MS)
        e2e_ms = float(answer_ms(ttft_ms, itl_ms, output_tokens))
        least = (ttft_ms, ttft_ms / input_tokens, itl_ms, itl_ms, e2e_ms)
        most = (_MOST_TTFT_MS, _MOST_TTFT_MS / input_tokens, _MOST_ITL_MS, _MOST_ITL_MS)
        return cls(
            dict(zip(LATENCIES, least, strict=True)),
            dict(zip(LATENCIES, (*most, _MOST_E2E_MS), strict=True)),
        )

    def check(self, row: Row) -> None:
        """Raise InputError where a latency of a probe's row cannot be."""
        for name in LATENCIES:
            value = row.get(name)
            if value is not None and not self.is_possible(name, value):
                raise row.error(self._problem(name, value), name, self._fix(name, value))

    def is_possible(self, name: str, value_ms: float) -> bool:
        """Return whether a latency can be."""
        return self.least_ms[name] <= value_ms <= self.most_ms[name]

    def _problem(self, name: str, value_ms: float) -> str:
        said = f"{number(float(value_ms))} ms cannot be"
        if value_ms < self.least_ms[name]:
            return f"{said}: no server of this LLM takes less than {number(self.least_ms[name])} ms"
        return f"{said}: no client waits longer than {number(self.most_ms[name])} ms"

    def _fix(self, name: str, value_ms: float) -> str:
        fix = self._in_milliseconds(name, value_ms)
        if name == "itl_ms" and value_ms < self.least_ms[name]:
            fix += "; or give tpot_ms alone, where several tokens come at once"
        return fix

    def _in_milliseconds(self, name: str, value_ms: float) -> str:
        for unit, factor in (("s", 1e3), ("µs", 1e-3), ("ns", 1e-6)):
            if self.is_possible(name, factor * value_ms):
                return f"give it in milliseconds: {factor * value_ms:.6g}, if it is in {unit} now"
        return "give what was measured, in milliseconds"

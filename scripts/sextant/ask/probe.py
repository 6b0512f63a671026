"""A probe: the file with measurements of the LLM that is asked about."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
from pydantic import Field

from sextant.ask.candidates import find_gpu_profile
from sextant.ask.probe_bounds import PossibleLatencies, check_fits, check_lengths
from sextant.base.errors import InputError
from sextant.base.sheets import Row, load_sheet
from sextant.facts.answer_times import answer_ms, requests_decoding, requests_in_flight
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import ALIKE, Latencies, are_alike
from sextant.pages.words import number, plural, under_load
from sextant.points.frame import KEYS, LATENCIES, LENGTHS, TARGETS

RATE = "request_rate_rps"
_MOST_WAIT = 0.5
"""Share of the users who decode, below which most of them wait."""
_MOST_BESIDE = 2.0
"""Factor between latencies that say the same, also where they are percentiles of each."""


@dataclass(frozen=True, kw_only=True)
class ProbeRow(Latencies):
    """`sextant recommend --probe`: each row is what was measured of the LLM on a GPU profile.

    At least one latency, each at the percentile that is asked for.
    """

    gpu_profile_id: str  #: the GPU profile it was measured on, e.g. 1xA100-40GB
    users: Annotated[int, Field(ge=1, le=10**4)] | None = None
    """give the concurrent users of a replica, 1 to 10,000; or request_rate_rps"""
    request_rate_rps: Annotated[float, Field(gt=0, le=10**6)] | None = None
    """give the requests a second of a replica that arrived whatever it did, above 0; or users"""


def read_probe(
    path: Path,
    llm_id: str,
    llm: LLM,
    gpu_profiles: Mapping[str, GPUProfile],
    lengths: Sequence[float],
) -> pd.DataFrame:
    """Return measurements of an LLM, from a CSV or TSV.

    nTTFT is TTFT / input tokens, TPOT is taken for ITL, and two of TTFT, ITL and E2E give the
    third.

    Args:
        path: the file.
        llm_id: the LLM's name.
        llm: its facts: what no server can be faster than follows from them.
        gpu_profiles: all that the file may name beside `<n>x<gpu_id>` of a known device.
        lengths: mean input and output tokens, where the file has none.

    Returns:
        One row per measurement: `llm_id, gpu_profile_id, users, request_rate_rps, input_tokens,
        output_tokens, nttft_ms, itl_ms, e2e_ms`, NaN where a latency was not measured and does not
        follow, and the latencies of the file with `own_` before their names. The users of a
        request rate are the requests in flight on average, by Little's law: NaN where TTFT alone
        was measured, and fewer by a TTFT where TPOT alone was. The rate of users is NaN.

    Raises:
        InputError: there is no file; a row is wrong, is repeated, has no latency or one that no
            server can have, names an unknown profile or one that the LLM's weights do not fit on,
            or has requests longer than the LLM's context.
    """
    if not path.is_file():
        fix = "correct its path, or leave --probe out"
        raise InputError("there is no such file", file=path, field="--probe", fix=fix)
    lines: dict[tuple[object, ...], int] = {}
    measurements = []
    for row in load_sheet(path, ProbeRow, delimiter=None):
        probe = ProbeRow(**row)
        profile_id = probe.gpu_profile_id
        field = "gpu_profile_id"
        profile = find_gpu_profile(profile_id, gpu_profiles, file=path, row=row.line, field=field)
        _check_load(probe, row)
        check_fits(row, llm, profile)
        check_lengths(row, llm, lengths)
        inputs = probe.input_tokens or lengths[0]
        outputs = probe.output_tokens or lengths[1]
        load = probe.users, probe.request_rate_rps
        line = lines.setdefault((profile_id, *load, inputs, outputs), row.line)
        if line != row.line:
            problem = f"{profile_id} {under_load(*load)} is already in line {line}"
            raise row.error(problem, field, "keep one of them")
        possible = PossibleLatencies.of(llm, profile, inputs, outputs)
        possible.check(row)
        measured = _measured(probe, row, inputs, outputs, possible)
        measurements.append([llm_id, profile_id, *measured])

    stated = [f"own_{name}" for name in LATENCIES]
    columns = [*KEYS, RATE, *LENGTHS, "e2e_ms", *TARGETS, *stated]
    return pd.DataFrame(measurements, columns=columns)


def used_note(probe: pd.DataFrame) -> str:
    """Return which loads of a probe an answer goes through."""
    profile_ids = " and ".join(dict.fromkeys(probe["gpu_profile_id"]))
    return f"Through {plural(len(probe), 'load')} of --probe, measured on {profile_ids}."


def notes_on(
    probe: pd.DataFrame, lengths: np.ndarray, *, has_steps: bool, is_limit_stated: bool
) -> list[str]:
    """Return which measured loads are unlike the asked ones, and what else counts of them.

    Args:
        probe: what `read_probe` returns.
        lengths: mean input and output tokens of the asked requests, (1, 2).
        has_steps: whether the answer comes from laws of a step.
        is_limit_stated: whether it is told how many requests a server runs at once.
    """
    use = "they join the fit, which this answer follows; no limit is judged by them"
    uncounted = uncounted_notes(probe)
    if has_steps:
        use = "the law of a step takes them over, and no limit is judged by them"
        uncounted = []
    queued = [] if is_limit_stated else queue_notes(probe)
    return [*other_lengths_notes(probe, lengths, use), *uncounted, *queued]


def other_lengths_notes(probe: pd.DataFrame, lengths: np.ndarray, use: str) -> list[str]:
    """Return that measured loads have requests unlike the asked ones; nothing where none has.

    Args:
        probe: what `read_probe` returns.
        lengths: mean input and output tokens of the asked requests, (1, 2).
        use: what such loads count for, e.g. `they join the fit alone`.
    """
    others = probe[~are_alike(probe[LENGTHS].to_numpy(float), lengths)]
    if others.empty:
        return []
    inputs, outputs = others[LENGTHS].iloc[0]
    asked_inputs, asked_outputs = lengths[0]
    has = "has" if len(others) == 1 else "have"
    return [
        f"{len(others)} of {plural(len(probe), 'load')} of --probe {has} requests more than "
        f"{ALIKE - 1:.0%} shorter or longer than the asked ones ({number(float(inputs))} input and "
        f"{number(float(outputs))} output tokens on {others['gpu_profile_id'].iloc[0]}; "
        f"{number(float(asked_inputs))} and {number(float(asked_outputs))} asked about): "
        f"{use}. Measure requests of the asked lengths."
    ]


def uncounted_notes(probe: pd.DataFrame) -> list[str]:
    """Return that loads of a probe, whose users are not known, count for no users; else nothing."""
    n_unknown = int(probe["users"].isna().sum())
    if not n_unknown:
        return []
    return [
        f"{n_unknown} of {plural(len(probe), 'load')} of --probe: TTFT alone at a request rate "
        "does not say how many users are in flight, so this answer for users leaves it out. Give "
        "TPOT or E2E too."
    ]


def queue_notes(probe: pd.DataFrame) -> list[str]:
    """Return at which measured users most requests waited for a first token; nothing where few did.

    By Little's law the share of an answer after its first token is that of the users who decode.
    """
    later_ms = probe["itl_ms"] * (probe["output_tokens"] - 1)
    ttft_ms = probe["nttft_ms"] * probe["input_tokens"]
    decoding = requests_decoding(probe["users"], ttft_ms, later_ms)
    is_queue = (probe["users"] > 1) & (decoding < _MOST_WAIT * probe["users"])
    if not is_queue.any():
        return []
    row = probe[is_queue].iloc[0]
    few = max(round(float(decoding[is_queue].iloc[0])), 1)
    return [
        f"Of {plural(int(row['users']), 'user')} measured on {row['gpu_profile_id']} about {few} "
        "decoded at once (Little's law): the others waited for a first token. If the server runs "
        "no more requests at once, give its --max-num-seqs; without it prompts are taken to last "
        "that long."
    ]


def _measured(
    probe: ProbeRow, row: Row, inputs: float, outputs: float, possible: PossibleLatencies
) -> list[float]:
    """Return the numbers of a measurement in the order of `read_probe`, from its users on.

    Raises InputError where its latencies contradict each other, or are not enough.
    """
    latencies_ms = [getattr(probe, name) for name in LATENCIES]
    in_file = [math.nan if value is None else value for value in latencies_ms]
    ttft_ms, nttft_ms, itl_ms, tpot_ms, e2e_ms = in_file
    steps = outputs - 1 if outputs > 1 else math.nan
    ttft_ms = nttft_ms * inputs if math.isnan(ttft_ms) else ttft_ms
    itl_ms = tpot_ms if math.isnan(itl_ms) else itl_ms
    if all(map(math.isnan, in_file)):
        fix = "give one or more of them, in milliseconds"
        raise row.error("no latency", ", ".join(LATENCIES), fix)
    if math.isnan(steps) and not math.isnan(itl_ms):
        field = "tpot_ms" if probe.itl_ms is None else "itl_ms"
        problem = "an answer of one token has no time between tokens"
        raise row.error(problem, field, "leave it out, or correct output_tokens")
    decode_ms = e2e_ms - ttft_ms
    is_short = decode_ms <= 0 or decode_ms < possible.least_ms["itl_ms"] * steps
    if is_short or e2e_ms - itl_ms * steps < possible.least_ms["ttft_ms"]:
        problem = "E2E is not above TTFT, or not above ITL × (output tokens - 1)"
        fix = "correct it, or give input_tokens and output_tokens of the requests"
        raise row.error(problem, "e2e_ms", fix)

    if e2e_ms > _MOST_BESIDE * (ttft_ms + tpot_ms * steps):
        problem = "E2E is more than twice TTFT + TPOT × (output tokens - 1)"
        fix = "correct one of them, or give output_tokens of the requests"
        raise row.error(problem, "e2e_ms", fix)
    if not 1 / _MOST_BESIDE <= ttft_ms / (nttft_ms * inputs) <= _MOST_BESIDE and nttft_ms > 0:
        problem = "TTFT is not nTTFT × input tokens"
        raise row.error(problem, "nttft_ms", "correct one of them, or leave nttft_ms out")

    ttft_ms = e2e_ms - itl_ms * steps if math.isnan(ttft_ms) else ttft_ms
    itl_ms = (e2e_ms - ttft_ms) / steps if math.isnan(itl_ms) else itl_ms
    rate_rps = math.nan if probe.request_rate_rps is None else probe.request_rate_rps
    users = float(probe.users or 0)
    if not users:
        # An unknown TTFT is a small part of an answer; an unknown ITL is most of it.
        least_ttft_ms = possible.least_ms["ttft_ms"] if math.isnan(ttft_ms) else ttft_ms
        took_ms = float(answer_ms(least_ttft_ms, itl_ms, outputs)) if math.isnan(e2e_ms) else e2e_ms
        users = max(round(requests_in_flight(rate_rps, took_ms)), 1) if took_ms > 0 else math.nan
    return [users, rate_rps, inputs, outputs, e2e_ms, ttft_ms / inputs, itl_ms, *in_file]


def _check_load(probe: ProbeRow, row: Row) -> None:
    """Raise InputError unless a row has exactly one load."""
    if (probe.users is None) == (probe.request_rate_rps is None):
        problem = "a measurement has one load"
        raise row.error(problem, "users, request_rate_rps", "give exactly one of them")

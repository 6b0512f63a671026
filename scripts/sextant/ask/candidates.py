"""The candidates: GPU profiles and their prices, and the LLM that they may serve."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import Field

from sextant.ask import source as sources
from sextant.ask.api_prices import find_api_prices
from sextant.ask.question import PARALLEL, Question, check_question, named_llm, speculated
from sextant.ask.source import Serving, Source
from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet
from sextant.decide.sizing import ruled_out
from sextant.facts import gpu
from sextant.facts.engine import DEFAULT_ENGINE
from sextant.facts.gpu import GPUProfile, cheapest, has_own_price
from sextant.facts.llm import (
    LLM,
    Memory,
    Speculating,
    config_file,
    kv_precision_of,
    memory_of,
    shipped_config,
)
from sextant.facts.llm_config import encoded_inputs
from sextant.facts.slo import Latencies
from sextant.pages.words import joined
from sextant.points.frame import (
    KEYS,
    LATENCIES,
    LENGTHS,
    SERVING,
    WAIT,
    FactTables,
    execution_classes,
)
from sextant.points.verdict import ProbeOutcome, Verdict
from sextant.predict.predictor import JointPredictor

_WIDER = 0.1
"""Standard deviation that a factor of e beyond the measured lengths adds to a log-latency."""


class Prices(NamedTuple):
    """Which prices a question names."""

    own: Mapping[str, GPUProfile]  # the GPU profiles of the user's table, at its prices
    providers: Sequence[str]

    def of(self, each: GPUProfile) -> GPUProfile:
        """Return a GPU profile at the price that holds, nan if none is known.

        The user's table comes first, then the providers that are named, then the source's own
        price, then the lowest of all tables that ship.
        """
        if (own := self.own.get(each.gpu_profile_id)) is not None:
            return own
        named = cheapest(each, self.providers) if self.providers else None
        if named is not None or has_own_price(each):
            return named or each
        return cheapest(each) or each


def read_prices(prices: Path | None, known: Mapping[str, GPUProfile]) -> Prices:
    """Return the prices that `--prices` names: a table, providers, or both with commas between.

    Raises InputError: one is neither a table nor a provider, or the table is wrong.
    """
    if prices is None:
        return Prices({}, ())
    own: dict[str, GPUProfile] = {}
    parts = [str(prices)] if prices.exists() else str(prices).split(",")
    sellers = [name for name in parts if name in gpu.providers()]
    for file in (Path(name) for name in parts if name not in sellers):
        if not file.exists():
            fix = f"give a CSV or TSV, or one of the tables that ship: {', '.join(gpu.providers())}"
            problem = "neither a file nor a provider"
            raise InputError(problem, file=file, field="--prices", fix=fix)
        for row in load_sheet(file, gpu.PriceRow, "gpu_profile_id", delimiter=None):
            name = row["gpu_profile_id"]
            each = profile(name, known, file=file, row=row.line, field="gpu_profile_id")
            price = {"usd_per_hour": row["usd_per_hour"], "price_source": file.name}
            own[name] = replace(each, **price, price_as_of=row.get("as_of"))
    return Prices(own, sellers)


def find_candidates(
    known: Mapping[str, GPUProfile],
    wanted: Sequence[str],
    prices: Path | None,
    *,
    need_prices: bool = True,
    field: str = "--gpu-profiles",
) -> dict[str, GPUProfile]:
    """Return the candidate GPU profiles, with the prices that hold (`Prices.of`).

    `wanted` are the profiles to consider, `<n>x<gpu_id>`; if empty those of the user's table, and
    what the providers that are named sell of the `known` ones; without prices all known. `prices`
    are as `read_prices` takes them; one that is missing is an error of a wanted profile, unless
    `need_prices` is false. `field` is the option that names the wanted ones.

    Raises InputError: a profile is unknown or has no price, or the table is wrong.
    """
    named = read_prices(prices, known)
    sold = {} if prices and not named.providers else known
    chosen = {}
    for name in dict.fromkeys(wanted or [*named.own, *sold]):
        each = named.of(profile(name, known, field=field))
        if need_prices and math.isnan(each.usd_per_hour):
            if wanted:
                fix = f"leave it out, or give it a row in {prices or '--prices'}"
                raise InputError(f"{name} has no price", field=field, fix=fix)
            continue
        is_other = named.providers and cheapest(each, named.providers) is None
        if wanted or name in named.own or not is_other:
            chosen[name] = each
    if not chosen:
        problem = f"{prices or 'no table'} has a price of none of the GPU profiles"
        fix = "name what is sold (--gpu-profiles), or give other prices"
        raise InputError(problem, field="--prices", fix=fix)
    return dict(sorted(chosen.items()))


def _price_notes(question: Question, known: Mapping[str, GPUProfile]) -> list[str]:
    """Return what the user's table and the candidates named have not in common."""
    (own, sellers), wanted = read_prices(question.prices, known), question.gpu_profile_ids
    if not own or (sellers and not wanted):
        return []
    if not wanted:
        text = f"The candidates are those of {question.prices}: {joined(sorted(own))}"
        return [f"{text}; `--prices FILE,aws` adds what a provider sells."]
    unused, unpriced = [name for name in own if name not in wanted], sorted({*wanted} - {*own})
    notes = [f"Not among --gpu-profiles, so left out: {joined(unused)}."] if unused else []
    if unpriced:
        notes.append(f"{question.prices} has no price of {joined(unpriced)}.")
    return notes


def profile(
    name: str,
    known: Mapping[str, GPUProfile],
    *,
    file: Path | None = None,
    row: int | None = None,
    field: str,
) -> GPUProfile:
    """Return a known GPU profile, or one of a known device, unpriced; else raise InputError."""
    if name in known:
        return known[name]
    try:
        return gpu.profile_of_id(name)
    except InputError as error:
        raise error.at(file=file, row=row, field=field) from None


@dataclass(frozen=True, kw_only=True)
class ProbeRow(Latencies):
    """`sextant recommend --probe`: each row is what was measured of the LLM on a GPU profile.

    At least one latency, each at the percentile that is asked for.
    """

    gpu_profile_id: str  #: the GPU profile it was measured on, e.g. 1xA100-40GB
    users: Annotated[int, Field(ge=1, le=10**6)]
    """give the concurrent users of the measurement, 1 to 1,000,000"""


def read_probe(
    path: Path, llm_id: str, known: Mapping[str, GPUProfile], lengths: Sequence[float]
) -> pd.DataFrame:
    """Return measurements of an LLM, from a CSV or TSV.

    Columns: `llm_id, gpu_profile_id, users`, the mean `input_tokens, output_tokens`, by default the
    asked `lengths`, and `nttft_ms, itl_ms, e2e_ms`; NaN where it was not measured, nor follows.
    nTTFT is TTFT / input tokens, TPOT is taken for ITL, and of TTFT, ITL and E2E two give the
    third.

    Raises InputError: a row is wrong, is repeated, has no latency or names an unknown profile.
    """
    rows = load_sheet(path, ProbeRow, delimiter=None)
    seen: dict[tuple[str, int], int] = {}
    for row in rows:
        field = "gpu_profile_id"
        profile(row[field], known, file=path, row=row.line, field=field)
        key = row[field], row["users"]
        if key in seen:
            problem = f"{key[0]} with {key[1]} users is already in line {seen[key]}"
            raise InputError(problem, file=path, row=row.line, field=field, fix="keep one of them")
        seen[key] = row.line
    keys = ["llm_id", "gpu_profile_id", "users", *LENGTHS]
    frame = pd.DataFrame(rows).reindex(columns=[*keys, *LATENCIES]).assign(llm_id=llm_id)
    frame = frame.fillna(dict(zip(LENGTHS, lengths, strict=True)))
    steps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    ttft = frame["ttft_ms"].fillna(frame["nttft_ms"] * frame["input_tokens"])
    itl, e2e = frame["itl_ms"].fillna(frame["tpot_ms"]), frame["e2e_ms"]

    def refuse(is_wrong: pd.Series, field: str, problem: str, fix: str) -> None:
        if is_wrong.any():
            line = rows[int(is_wrong.to_numpy().argmax())].line
            raise InputError(problem, file=path, row=line, field=field, fix=fix)

    fix = "give one or more of them, in milliseconds"
    refuse(ttft.fillna(itl).fillna(e2e).isna(), ", ".join(LATENCIES), "no latency", fix)
    problem = "E2E is not above TTFT, or not above ITL × (output tokens - 1)"
    fix = "correct it, or give input_tokens and output_tokens of the requests"
    refuse((e2e <= ttft) | (e2e <= itl * steps), "e2e_ms", problem, fix)
    ttft, itl = ttft.fillna(e2e - itl * steps), itl.fillna((e2e - ttft) / steps)
    own = frame[[*LATENCIES]].add_prefix("own_")
    targets = {"nttft_ms": ttft / frame["input_tokens"], "itl_ms": itl}
    return frame[[*keys, "e2e_ms"]].assign(**targets).join(own)


@dataclass(frozen=True)
class Subject:
    """The LLM that is asked about, the profiles that may serve it, and what is known."""

    question: Question
    llm_id: str
    llms: Mapping[str, LLM]  # all measured LLMs, and this one
    profiles: Mapping[str, GPUProfile]  # the candidates, and those that cannot serve it
    excluded: Mapping[str, str]  # why some of them cannot serve it, by profile
    source: Source
    serving: Serving
    widening_sd: float = 0.0
    """Added to log-latencies: the question lies outside of what was measured."""

    @property
    def llm(self) -> LLM:
        """Its facts."""
        return self.llms[self.llm_id]

    @property
    def measured(self) -> dict[str, LLM]:
        """The measured LLMs, as the source has them."""
        names = set(self.source.known.points["llm_id"])
        return {name: llm for name, llm in self.source.known.llms.items() if name in names}

    @property
    def execution(self) -> dict[str, str]:
        """How each LLM is executed."""
        return execution_classes(self.llms, self.source.known.features)

    @property
    def candidates(self) -> list[str]:
        """The profiles that its memory facts allow."""
        return [name for name in self.profiles if name not in self.excluded]

    @property
    def engine(self) -> str:
        """What is asked to serve it."""
        return self.serving.engine or DEFAULT_ENGINE

    def memory(self, profile_id: str) -> Memory:
        """Return what is where in the memory of a candidate."""
        # A source says what share its vLLM servers were given.
        share = self.source.memory_utilization if self.engine == DEFAULT_ENGINE else None
        profile = self.profiles[profile_id]
        copies = self.serving.copies(profile)
        return memory_of(self.llm, profile.devices, share, self.engine, copies)

    @property
    def mean_lengths(self) -> dict[str, float]:
        """Mean input and output tokens of the asked requests."""
        return dict(zip(LENGTHS, (each.mean for each in self.serving.requests), strict=True))

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of the asked requests, shape (1, 2)."""
        return np.array([[each.mean for each in self.serving.requests]])

    @cached_property
    def probe(self) -> pd.DataFrame | None:
        """What was measured of it (`read_probe`), None without a file; InputError if wrong."""
        if self.question.probe is None:
            return None
        known = {**self.source.known.profiles, **self.profiles}
        return read_probe(self.question.probe, self.llm_id, known, self.lengths[0])

    def training(
        self, model: JointPredictor, points: pd.DataFrame, profiles: Mapping[str, GPUProfile]
    ) -> pd.DataFrame:
        """Return the design matrix of measured points."""
        facts = FactTables(self.measured, profiles, self.source.known.features)
        return model.design(self.measured_keys(points), facts)

    def measured_keys(self, points: pd.DataFrame) -> pd.DataFrame:
        """Return the keys of measured points, as they are taken for training.

        Each keeps its own lengths where the source's requests have fixed ones; else the points of
        a source share their medians, as a point's mean depends on which requests it answered.
        """
        medians = self.source.known.points.groupby("source")[LENGTHS].median()
        shared = medians.reindex(points["source"]).set_axis(points.index)
        own = points[LENGTHS].where(points["source"].isin(self.source.fixed), shared)
        return points[["source", *KEYS, *SERVING, WAIT]].join(own)

    def asked(
        self, model: JointPredictor, keys: pd.DataFrame, profiles: Mapping[str, GPUProfile]
    ) -> pd.DataFrame:
        """Return the design matrix of `keys` for the asked servers, as most points are measured.

        Where `keys` have lengths, those are the requests'; else they are the asked ones. Servers
        that were set up to wait do so at `keys` that say it.
        """
        facts = FactTables(self.llms, profiles, self.source.known.features)
        own = keys[[name for name in (*LENGTHS, WAIT) if name in keys]]
        served = self.serving.columns() | {"source": self.source.known.points["source"].mode()[0]}
        return model.design(keys[KEYS].assign(**served).assign(**own), facts)

    def undrafted(self) -> "Subject":
        """Return the LLM without speculation, as points of sources are."""
        if not isinstance(self.llm, Speculating):
            return self
        plain: dict[str, Any] = dict.fromkeys(sources.speculation_of(self.llm))
        llms = {**self.llms, self.llm_id: self.llm.undrafted}
        return replace(self, llms=llms, serving=self.serving._replace(**plain))

    def rows_at(
        self, model: JointPredictor, users: list[int], profile_ids: list[str] | None = None
    ) -> pd.DataFrame:
        """Return its design matrix at these user counts, on all candidates unless given."""
        names = self.candidates if profile_ids is None else profile_ids
        keys = [(self.llm_id, name, count) for name in names for count in users]
        return self.asked(model, pd.DataFrame(keys, columns=KEYS), self.profiles)


class Asked(NamedTuple):
    """A question with all that it names."""

    given: Question  # as it was put
    question: Question  # in the precisions in which its LLM was measured, unless it says others
    llm_id: str
    llm: LLM
    source: Source
    profiles: dict[str, GPUProfile]  # the candidates
    notes: list[str]  # what is assumed of the precisions, a sentence each

    def unmeasured(self) -> dict[str, GPUProfile]:
        """Return what is sold of GPUs that the source has no points of, beside the candidates.

        None where the user names the candidates, or has prices of his own: those say what there is
        to choose from.
        """
        question, measured = self.question, self.source.gpu_ids
        named = read_prices(question.prices, self.source.known.profiles)
        is_chosen = question.gpu_profile_ids or named.own or question.measured_only
        if is_chosen or all(map(has_own_price, self.profiles.values())):
            return {}
        sold = gpu.offered_profiles(named.providers)
        return {name: each for name, each in sold.items() if each.gpu.gpu_id not in measured}


def read_question(
    question: Question, *, need_prices: bool = True, field: str = "--gpu-profiles"
) -> Asked:
    """Find what a question names: measurements, the LLM, the candidates and their prices.

    Raises InputError: an option is wrong, or names something that is not known.
    """
    check_question(question)
    given, source = question, sources.find_source(question)
    known = source.known
    if (in_file := (question.llm_id or "").replace("/", "__")) in known.llms:
        question = replace(question, llm_id=in_file)  # as files name an id of Hugging Face
    question, notes = sources.as_measured(question, known)
    notes += _price_notes(question, known.profiles)
    llm_id, llm = named_llm(question, known)
    config = question.hf_config or shipped_config(llm_id)
    if inputs := encoded_inputs(config_file(config)) if config else []:
        what = " and ".join(inputs)
        notes = [*notes, f"Not counted: {what}, their tokens, and the encoder's memory and time."]
    if question.api_prices is not None:
        find_api_prices(question.api_prices, llm_id)  # checked before anything is simulated
    wanted, prices = question.gpu_profile_ids, question.prices
    profiles = find_candidates(known.profiles, wanted, prices, need_prices=need_prices, field=field)
    if question.measured_only:
        profiles = {name: e for name, e in profiles.items() if e.gpu.gpu_id in source.gpu_ids}
        if not profiles:
            problem = f"{known.source} has points of none of these GPUs"
            raise InputError(problem, field="--measured-only", fix="leave it out, or name others")
    return Asked(given, question, llm_id, llm, source, profiles, notes)


def subject_of(
    question: Question, llm_id: str, llm: LLM, source: Source, profiles: Mapping[str, GPUProfile]
) -> Subject:
    """Return the LLM and the measured ones, with the profiles that cannot serve it.

    Where the source could not run LLMs of its kind, the profile is excluded; but on a profile that
    is asked for by name the person may have an engine that can. Raises InputError: none can.
    """
    known, serving = source.known, sources.serving_of(question, source)
    measured, llm = set(known.points["llm_id"]), speculated(question, llm_id, llm)
    serving = serving._replace(**sources.speculation_of(llm))
    llms = {name: facts for name, facts in known.llms.items() if name in measured} | {llm_id: llm}
    if serving.kv_precision is None and (question.hf_config or llm_id not in measured):
        serving = serving._replace(kv_precision=kv_precision_of(llm))
    longest = sources.longest_of(question, source)
    excluded = _left_out(llm_id, llms, source, profiles)
    excluded = {n: why for n, why in excluded.items() if n not in question.gpu_profile_ids}
    asked = longest, source.memory_utilization, serving.engine, question.data_parallel or 1
    excluded |= ruled_out(llm, profiles, *asked) | _uneven(question, llm_id, llm, profiles)
    if len(excluded) == len(profiles):
        name = max(excluded, key=lambda name: profiles[name].devices.memory_bytes)
        fix = "add a larger GPU profile or another number of GPUs, or quantize the LLM"
        if llm.context_tokens < longest:
            fix = "ask about shorter requests, or give a config.json with a longer context"
        problem = f"no GPU profile can serve {llm_id}; {name}: {excluded[name]}"
        raise InputError(problem, fix=fix)
    subject = Subject(question, llm_id, llms, profiles, excluded, source, serving)
    if question.requests is None:
        return subject
    factor = max(sources.beyond(source, subject.mean_lengths).values())
    return replace(subject, widening_sd=_WIDER * math.log(factor))


def _uneven(
    question: Question, llm_id: str, llm: LLM, profiles: Mapping[str, GPUProfile]
) -> dict[str, str]:
    """Return the profiles whose GPUs the asked layout does not divide. Raises InputError: it is not
    one of a mixture of experts."""
    copies, parts = (getattr(question, name) or 1 for name in PARALLEL)
    problem, fix = None, "leave both out"
    if max(copies, parts) > 1 and not llm.n_experts:
        problem = f"{llm_id} has no experts: copies of it are replicas"
    elif copies > 1 and question.expert_parallel == 1:
        problem, fix = "GPUs with copies of attention share experts out", "leave the latter out"
    found = {
        name: f"its GPUs ({each.n_gpus}) cannot be shared out in {n:g} parts"
        for name, each in profiles.items()
        for n in (copies, parts)
        if n < math.inf and each.n_gpus % n
    }
    if len(found) == len(profiles):
        name = next(iter(found))
        problem, fix = problem or f"{name}: {found[name]}", fix if problem else "give all"
    if problem:
        field = ", ".join(f"--{name.replace('_', '-')}" for name in PARALLEL)
        raise InputError(problem, field=field, fix=fix)
    return found


def _left_out(
    llm_id: str, llms: Mapping[str, LLM], source: Source, profiles: Mapping[str, GPUProfile]
) -> dict[str, str]:
    """Return the profiles of GPUs on which the source left out all LLMs that run like this one."""
    known = source.known
    execution = execution_classes(llms, known.features)
    tried = known.feasibility[["llm_id", "gpu_profile_id", "is_feasible", "verdict"]]
    tried = tried[tried["llm_id"].map(execution) == execution[llm_id]]
    gpu_ids = tried["gpu_profile_id"].map(lambda name: known.profiles[name].gpu.gpu_id)
    measured = set(gpu_ids[tried["is_feasible"].astype(bool)])
    omitted = set(gpu_ids[tried["verdict"] == ProbeOutcome.OMITTED]) - measured
    why = Verdict(ProbeOutcome.OMITTED, source=known.source).reason
    return {
        name: f"LLMs executed alike ({execution[llm_id]}) were {why}"
        for name, each in profiles.items()
        if each.gpu.gpu_id in omitted
    }

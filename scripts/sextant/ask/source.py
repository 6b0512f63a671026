"""What an answer rests on: characterizations, the servers they know, and what lies outside."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from sextant.ask import question as questions
from sextant.ask.question import PARALLEL, PIPELINE_STORE, Question, answers_from_points
from sextant.base.errors import InputError
from sextant.facts.engine import DEFAULT_ENGINE, is_known_engine, version_numbers
from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import LLM, Speculating, kv_precision_of, precision_in_name, precision_of
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.words import joined, percent, plural
from sextant.points import frame
from sextant.points.characterization import (
    DEFAULT_SOURCES,
    FILE,
    Characterization,
    combined,
    load_description,
    load_folder,
    shipped_sources,
)
from sextant.points.frame import LENGTHS, SERVING
from sextant.workload.lengths import Length, RequestLengths

_SIDES = ("input", "output")
_THIS_RUN = "this run"


class Source(NamedTuple):
    """A characterization, or several in one, and where it came from."""

    known: Characterization
    origin: str  # the path of its store or folder, or `shipped`
    longest_request_tokens: int
    memory_utilization: float
    input_tokens: float  # mean input length of its workload's requests
    output_tokens: float
    note: str | None  # what a reader has to know of its servers, where it came with such a note

    @property
    def gpu_ids(self) -> set[str]:
        """The types of GPU that it has points of."""
        names = self.known.points["gpu_profile_id"].unique()
        return {self.known.profiles[name].gpu.gpu_id for name in names}

    @property
    def fixed(self) -> list[str]:
        """Names of its parts whose points have requests of lengths of their own."""
        return [each.source for each in self.known.descriptions if each.lengths == "fixed"]

    def facts(self) -> dict[str, Any]:
        """Return what an answer says of it; ranges of lengths are those of fixed requests."""
        points, of = self.known.points, self.known.descriptions
        means = (self.input_tokens, self.output_tokens)
        ranges = [[mean, mean] for mean in means]
        if self.fixed:
            ranges = points[LENGTHS].agg(["min", "max"]).to_numpy(float).T.tolist()
        return {
            "source": self.known.source,
            "origin": self.origin,
            "note": self.note,
            "attributions": [f"{each.attribution} ({each.licence})" for each in of],
            "n_llms": int(points["llm_id"].nunique()),
            "n_gpu_profiles": int(points["gpu_profile_id"].nunique()),
            "n_points": len(points),
            "mean_input_tokens": self.input_tokens,
            "mean_output_tokens": self.output_tokens,
            "lengths_tokens": dict(zip(_SIDES, ranges, strict=True)),
            "longest_request_tokens": self.longest_request_tokens,
            "memory_utilization": self.memory_utilization,
        }


def find_source(question: Question) -> Source:
    """Return the characterization to answer from. The one that the question has already; those that
    `--source` and `--database` name; else the pipeline's own, if it knows the LLM; else what ships.
    Raises InputError: a store or folder cannot be read, or lacks what a prediction needs."""
    if question.known is not None:
        return _complete(question.known, _THIS_RUN)
    names, database, llm_id = question.sources, question.database, question.llm_id
    if not names and database is None:
        is_ours = False
        if llm_id is not None and PIPELINE_STORE.is_file():
            from sextant.points.store import open_store

            with open_store(PIPELINE_STORE) as store:
                is_ours = bool(store.execute("FROM llm WHERE llm_id = ?", [llm_id]).fetchall())
        names = () if is_ours else (_newest(question),)
    known, origin = load_sources(names, database, question.workload_id, question.scenario_id)
    kinds = {known.profiles[name].gpu.kind for name in known.points["gpu_profile_id"].unique()}
    is_prediction = not answers_from_points(question, questions.asked_llm_id(question), known)
    if is_prediction and known.points["llm_id"].nunique() == 1 and kinds != {"cpu"}:
        ships = load_folder(shipped_sources()[DEFAULT_SOURCES[0]])
        text = f"{ships.source} counts beside {known.source}: one LLM alone predicts no other."
        source = _complete(combined([known, ships]), f"{origin} + shipped")
        return source._replace(note=f"{text} {source.note}")
    return _complete(known, origin)


def _newest(question: Question) -> str:
    """Return the newest source that ships and covers the question. A question without lengths is
    one for a source with a workload of its own. The newest source of all answers where none has the
    GPUs or the engine that are asked for."""
    if question.requests is None:
        return DEFAULT_SOURCES[-1]
    if not question.gpu_profile_ids and question.engine is None:
        return DEFAULT_SOURCES[0]
    wanted = {profile_id.partition("x")[2] for profile_id in question.gpu_profile_ids}
    for name in DEFAULT_SOURCES:
        known = load_folder(shipped_sources()[name])
        gpu_ids = {known.profiles[each].gpu.gpu_id for each in known.points["gpu_profile_id"]}
        if wanted <= gpu_ids and question.engine in {None, *known.points["engine"].dropna()}:
            return name
    return DEFAULT_SOURCES[0]


def load_sources(
    names: Sequence[str],
    database: Path | None = None,
    workload_id: str | None = None,
    scenario_id: str | None = None,
) -> tuple[Characterization, str]:
    """Return one characterization, or several as one, and where it is from. Each of `names` is the
    folder of a characterization, a store, a folder of cells, one that ships or one of the store;
    without any the store's own is taken. The store is that of the pipeline by default; if `names`
    choose none of its sources, its own counts beside them. Workload and scenario are the store's
    own by default. Raises InputError: one cannot be read, or two contradict each other."""
    places = [_place(name, database) for name in dict.fromkeys(names)]
    if not names or (database is not None and all(name is None for _, name in places)):
        # A store that is named counts beside what else is.
        if database is None and not PIPELINE_STORE.is_file():
            ships = ", ".join(shipped_sources())
            fix = f"run the pipeline first (`make demo`), or give --database, or --source: {ships}"
            raise InputError("there is no store here", file=PIPELINE_STORE, fix=fix)
        places.insert(0, (database or PIPELINE_STORE, ""))
    for field, value in (("--workload-id", workload_id), ("--scenario-id", scenario_id)):
        if value is not None and all(name is None for _, name in places):
            fix = "leave it out, or name your own points (--source, --database)"
            problem = f"{', '.join(names)} has one workload and one scenario"
            raise InputError(problem, field=field, fix=fix)
    parts, origins, shipped = [], [], shipped_sources()
    for place, name in places:
        if name is None:
            is_shipped = place in shipped.values()
            origins.append("shipped" if is_shipped else str(place))
            parts.append(load_folder(place) if is_shipped else _load_own(place))
            continue
        # With what a cell is, which a folder of points does without.
        from sextant.points.measured import load_characterization

        known = load_characterization(place, name or None, workload_id, scenario_id)
        if known.source in shipped:  # that has a description
            about = load_description(shipped[known.source])
            points = frame.complete(known.points, about.defaults)
            known = replace(known, points=points, descriptions=(about,))
        origins.append(str(place))
        parts.append(known)
    return combined(parts), " + ".join(dict.fromkeys(origins))


def _place(name: str, database: Path | None) -> tuple[Path, str | None]:
    """Return where a source is, and which one of a store it is ("": its own); None of a folder."""
    path, shipped = Path(name), shipped_sources()
    if (path / FILE).is_file():
        return path, None
    if path.is_file() or (path.is_dir() and next(path.rglob("run.json"), None)):
        return path, ""
    if path.is_dir():
        fix = "write it (docs/adding.md), or give a folder of `sextant load` runs"
        problem = "there is no characterization.yaml in this folder"
        raise InputError(problem, file=name, field="--source", fix=fix)
    if name in shipped:
        if database is None:
            return shipped[name], None
        from sextant.points.measured import load_all

        if all(known.source != name for known in load_all(database)):
            return shipped[name], None
    if database is not None or PIPELINE_STORE.is_file():
        return database or PIPELINE_STORE, name
    others = f"one that ships ({', '.join(shipped)}), or a store (--database)"
    fix = f"run the pipeline first (`make demo`), or give a folder, {others}"
    problem = f"neither a folder nor what ships is called {name!r}, and there is no store here"
    raise InputError(problem, file=PIPELINE_STORE, field="--source", fix=fix)


def known_sources(
    folders: Iterable[Path], database: Path | None = None
) -> list[tuple[Characterization, str]]:
    """Return what answers can rest on, each with its place: what ships, the store, and folders.
    Raises InputError: a folder or the given store cannot be read."""
    found = [(load_folder(folder), "ships") for folder in shipped_sources().values()]
    store = database or PIPELINE_STORE
    if database is not None or store.is_file():
        from sextant.points.measured import load_all

        found += [(known, str(store)) for known in load_all(store)]
    return found + [(_load_own(folder), str(folder)) for folder in folders]


def _load_own(folder: Path) -> Characterization:
    """Return a folder that does not ship, or is a copy of one that does. Raises InputError: it
    makes no sense, or has the name of one that ships and is of others."""
    known = load_folder(folder)
    ships = shipped_sources().get(known.source)
    if ships and load_description(ships).attribution != known.descriptions[0].attribution:
        problem = f"{known.source} is a source that ships, measured by others"
        fix = "give yours a name of its own, e.g. my-lab"
        raise InputError(problem, file=folder / FILE, field="source", fix=fix)
    return known


def _complete(known: Characterization, origin: str) -> Source:
    """Return a characterization with its longest request and the mean lengths of its workload.
    Those are medians over points: a point's own mean depends on which requests it could answer."""
    about, lengths = known.descriptions, known.points[LENGTHS].median()
    if lengths.isna().any():
        problem, field = "no point has a request that succeeded", None
        fix = "see `error` in the cells' requests.parquet, and measure again"
        if about:
            (name, *_) = lengths.index[lengths.isna()]
            problem = f"{known.source} does not say {name}: no answer can rest on it alone"
            fix, field = "add another source, e.g. --source archive:inferencex", "--source"
        raise InputError(problem, file=origin, field=field, fix=fix)
    longest = known.longest_request_tokens
    if longest is None and about:
        stated = [each.longest_request_tokens for each in about if each.longest_request_tokens]
        longest = max([*stated, round(known.points[LENGTHS].sum(axis=1).max())])
    if longest is None:
        problem = f"the longest request of {known.source} is not known"
        fix = "ask a source that you measured, or one that ships"
        raise InputError(problem, file=origin, field="--source", fix=fix)
    note = " ".join(each.note for each in about if each.note) or None
    inputs, outputs = map(float, lengths)
    utilization = float(known.memory_utilization)
    return Source(known, origin, int(longest), utilization, inputs, outputs, note)


_PRECISIONS: tuple[tuple[str, str, str, Callable[[LLM], str]], ...] = (
    ("dtype", "precision", "weights", precision_of),
    ("kv_dtype", "kv_precision", "the KV cache", kv_precision_of),
)
"""Field of a question, column of points, what people call it, and what a configuration says."""


class Serving(NamedTuple):
    """How the LLM is asked to be served, and of which requests."""

    requests: RequestLengths
    engine: str | None
    engine_version: str | None
    precision: str | None
    kv_precision: str | None
    prefix_hit_rate: float
    speculative: str | None = None  # what drafts
    draft_tokens: int | None = None
    accepted_length: float | None = None
    data_parallel: float | None = None  # as a question has them
    expert_parallel: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return what an answer says of it."""
        facts = self._asdict()
        means = (each.mean for each in facts.pop("requests"))
        facts |= {name: "all" for name in PARALLEL if facts[name] == math.inf}
        return {**dict(zip(LENGTHS, means, strict=True)), **facts}

    def columns(self) -> dict[str, Any]:
        """Return what the keys of a design matrix say of it."""
        layout = {name: getattr(self, name) for name in PARALLEL}
        return {**dict.fromkeys(SERVING), **self.facts(), **layout}

    def copies(self, profile: GPUProfile) -> float:
        """Return how many copies of attention a replica on a GPU profile has."""
        return min(self.data_parallel or 1, profile.n_gpus)


def speculation_of(llm: LLM) -> dict[str, Any]:
    """Return what a `Serving` says of how an LLM speculates; nothing where it does not."""
    if not isinstance(llm, Speculating):
        return {}
    return {
        "speculative": llm.method,
        "draft_tokens": llm.draft_tokens,
        "accepted_length": llm.accepted_length,
    }


def as_measured(
    question: Question, known: Characterization, *, has_options: bool = True
) -> tuple[Question, list[str]]:
    """Return the question with the precisions in which its LLM was measured, and what to say of it.
    Only a precision that the question leaves open is filled in. Where the points differ, or the
    configuration is given, it is that of the configuration, or of most points if none was served
    so. Without options the person cannot choose another one, and the notes name no option."""
    llm_id = questions.asked_llm_id(question)
    if question.sizes is not None:
        return question, [question.sizes.description()]
    if not questions.has_points(llm_id, known) or answers_from_points(question, llm_id, known):
        return question, []
    points, llm = known.points[known.points["llm_id"] == llm_id], known.llms[llm_id]
    notes, chosen = [], {}
    if question.hf_config is not None:
        sources = " and ".join(points["source"].unique())
        notes.append(f"{llm_id} was measured by {sources}: those measurements are used.")
    if (points["engine"] == question.engine).any():
        points = points[points["engine"] == question.engine]
    for name, column, what, of_config in _PRECISIONS:
        if getattr(question, name) is not None or points[column].isna().all():
            continue
        found = points[column].fillna(of_config(llm)).value_counts()
        own, option = of_config(llm), f" (--{name.replace('_', '-')} chooses)" * has_options
        is_own = own in found or question.hf_config is not None
        taken = chosen[name] = own if is_own else str(found.index[0])
        if len(found) > 1 or taken not in found:
            measured = " and ".join(sorted(found.index))
            text = f"{llm_id} was measured with {what} in {measured}: {taken} is assumed"
            notes.append(f"{text}{option}.")
        elif taken != own:
            text = f"{llm_id} is taken to be served with {what} in {taken}, as it was measured"
            notes.append(f"{text}, not in the {own} of its configuration{option}.")
    dtype, kv_dtype = (chosen.get(name, getattr(question, name)) for name in ("dtype", "kv_dtype"))
    return replace(question, dtype=dtype, kv_dtype=kv_dtype), notes


def named_otherwise(question: Question, llm_id: str, llm: LLM) -> list[str]:
    """Say where an LLM's name has a precision that neither its config nor the question has."""
    precision = precision_in_name(llm_id, llm)
    if question.hf_config is None or question.dtype is not None or precision is None:
        return []
    return [
        f"{llm_id} says {precision} in its name, but its config quantizes nothing: {llm.dtype} is "
        f"assumed. Put its hf_quant_config.json beside it, or give --dtype {precision}."
    ]


_USUAL_SHARE = 0.1


def serving_of(question: Question, source: Source) -> Serving:
    """Return what the question says, filled in with what is usual in the source. The engine is that
    of most points, its version the newest one that a tenth of its points are of: a few, or a
    nightly build, say little of others. Lengths are those that the LLM itself was measured with, if
    its points are of one workload; else the source's."""
    points, requests = source.known.points, question.requests
    if requests is None:
        own = _own_lengths(question, source).median()
        means = [source.input_tokens, source.output_tokens] if own.isna().any() else map(float, own)
        requests = RequestLengths(*(Length(mean, 0.0) for mean in means))
    engines = points["engine"].dropna()
    engine = question.engine or (engines.mode().iloc[0] if len(engines) else None)
    shares = points.loc[points["engine"] == engine, "engine_version"].value_counts(normalize=True)
    versions = shares[shares >= min(_USUAL_SHARE, shares.max())].index
    newest = max(versions, key=version_numbers, default=None)
    precisions = question.precision, question.kv_precision
    layout = {name: getattr(question, name) for name in PARALLEL}
    return Serving(requests, engine, newest, *precisions, question.prefix_hit_rate, **layout)


def _own_lengths(question: Question, source: Source) -> pd.DataFrame:
    """Return the lengths of the LLM's own points in sources of one workload."""
    points = source.known.points
    is_own = (points["llm_id"] == questions.asked_llm_id(question)) & ~points["source"].isin(
        source.fixed
    )
    return points.loc[is_own, LENGTHS].dropna()


def longest_of(question: Question, source: Source) -> int:
    """Return the tokens of the longest request that a server has to hold."""
    if question.max_model_len is not None:
        return question.max_model_len
    if question.requests is not None:
        return round(sum(each.high for each in question.requests))
    own = _own_lengths(question, source)
    if source.known.has_fixed_lengths and len(own):  # others have longer requests than the LLM's
        return int(own.sum(axis=1).max().round())
    return source.longest_request_tokens


_FAR = 2  # lengths beyond this many times the measured ones are outside of the basis
_SIXTEEN_BIT = {"fp16": "bf16", "bf16": "fp16"}  # these are of one speed and size
_OF_TARGET = {"nttft_ms": {"ttft", "nttft", "e2e"}, "itl_ms": {"itl", "tpot", "e2e"}}
"""The limits that each of the two predicted latencies decides."""
_KINDS: tuple[tuple[str, Callable[[LLM], str]], ...] = (
    ("an LLM with", lambda llm: "an encoder" if llm.n_encoder_layers else "a decoder alone"),
    ("attention", lambda llm: llm.attention),
    ("layers that are", lambda llm: "a mixture of experts" if llm.n_experts else "dense"),
)
_SIZES: tuple[tuple[str, Callable[[LLM], float]], ...] = (
    ("GiB of weights", lambda llm: llm.weight_bytes / GIB),
    ("layers", lambda llm: llm.n_layers + llm.n_encoder_layers),
    ("KiB of KV cache per token", lambda llm: llm.kv_bytes_per_token / 1024),
)


def beyond(source: Source, lengths: Mapping[str, float]) -> dict[str, float]:
    """Return by what factor each length lies beyond the measured ones, at least 1."""
    found = {}
    for name in LENGTHS:
        values = source.known.points[name].dropna()
        found[name] = max(lengths[name] / values.max(), values.min() / lengths[name], 1.0)
    return found


def outside_basis(
    question: Question,
    source: Source,
    llm: LLM,
    lengths: Mapping[str, float],
    profiles: Mapping[str, GPUProfile],
    users: int | None = None,
) -> list[str]:
    """Return in what the question lies outside of the basis, a clause each. `users` of a replica
    are asked for where a latency is explained; an answer offers no more than were measured. Raises
    InputError: anything does, and the question is strict."""
    points, found = source.known.points, []
    for side, (name, factor) in zip(_SIDES, beyond(source, lengths).items(), strict=True):
        if factor > _FAR:
            ends = f"{points[name].min():.0f} to {points[name].max():.0f}"
            text = f"{plural(round(lengths[name]), f'{side} token')}, where {ends} were measured"
            found.append((f"--{side}-tokens", text))
    engines = sorted(points["engine"].dropna().unique())
    if question.engine is not None and question.engine not in engines:
        known = ", ".join(engines) or "an engine that is not named"
        what = f"the engine {question.engine}"
        if not is_known_engine(question.engine):
            what += f" (scheduled as {DEFAULT_ENGINE}: resources/engines does not know it)"
        found.append(("--engine", f"{what}, where {known} was measured"))
    if (question.data_parallel or 1) > 1 and not (points["data_parallel"] > 1).any():
        found.append(("--data-parallel", "copies of attention, where none were measured"))
    found += _outside_llms(source, llm)
    gpu_ids = {each.gpu.gpu_id for each in profiles.values()}
    if unmeasured := sorted(gpu_ids - source.gpu_ids):
        text = f"{joined(unmeasured)}, where {joined(sorted(source.gpu_ids))} were measured"
        found.append(("--gpu-profiles", text))
    if users is not None and users > (most := points["users"].max()):
        text = f"{users:,} users a replica, where up to {most:,} were measured"
        found.append(("--users-per-replica", text))
    if found and question.is_strict:
        field, text = found[0]
        fix = "ask about what was measured, name another --source, or leave --strict out"
        raise InputError(f"{text} ({source.known.source})", field=field, fix=fix)
    return [text for _, text in found]


def _outside_llms(source: Source, llm: LLM) -> list[tuple[str, str]]:
    """Return in what an LLM as it is served differs from all measured ones, with the option."""
    found, (points, llms) = [], (source.known.points, source.known.llms)
    measured = [llms[name] for name in points["llm_id"].unique()]

    def add_new(option: str, what: str, value: str, known: set[str]) -> None:
        if not {value, _SIXTEEN_BIT.get(value)} & known:
            found.append((option, f"{what} {value}, where {joined(sorted(known))} were measured"))

    for name, column, what, of_config in _PRECISIONS:
        configured = points["llm_id"].map({each: of_config(own) for each, own in llms.items()})
        known = set(points[column].fillna(configured))
        add_new(f"--{name.replace('_', '-')}", f"{what} in", of_config(llm), known)
    for what, kind in _KINDS:
        add_new("--hf-config", what, kind(llm), {kind(each) for each in measured})
    for unit, size in _SIZES:
        value, values = size(llm), [size(each) for each in measured]
        if not min(values) <= value <= max(values):
            ends = f"{min(values):.4g} to {max(values):.4g}"
            found.append(("--hf-config", f"{value:.4g} {unit}, where {ends} were measured"))
    return found


def estimates(points: pd.DataFrame, slo: SLO) -> list[str]:
    """Return which percentiles are estimated, and from what, a sentence each. Only of latencies
    that have a limit, or that a request rate needs."""
    names = {"nttft_ms": "TTFT", "itl_ms": "time per token"}
    percentiles = dict(zip(names, slo.percentiles, strict=True))
    used = [name for name in names if slo.users is None or _OF_TARGET[name] & slo.limits.keys()]
    latencies = frame.at_percentile(points, slo.percentiles, slo.first_token)
    missing = [name for name in used if not (latencies[name] > 0).any()]
    found = [
        f"No {names[name]} was measured: its values are the law's assumption alone."
        for name in missing
    ]
    for target, columns in frame.estimated(points, percentiles).items():
        if target in used and target not in missing:
            found += _estimate(f"the {names[target]}", percentiles[target], columns)
    return found


def _estimate(what: str, percentile: int, columns: Sequence[str]) -> list[str]:
    own, known = PERCENTILE_PREFIX[percentile], [name.split("_")[0] for name in columns]
    if percentile == 50 and set(known) <= {"mean", "median"}:
        return []
    others = [name for name in known if name != own]
    how = f"estimated from the {' or '.join(others)} with a factor of other sources"
    if others == ["p90", "p99"]:
        how = "interpolated between p90 and p99"
    if own in known:
        return [f"Some points lack the p{percentile} of {what}: there it is {how}."]
    return [f"The p{percentile} of {what} is not among the points: it is {how}."]


_MOST_FAILURES = 5


def judgements(points: pd.DataFrame, latencies: pd.DataFrame, slo: SLO) -> list[str]:
    """Return what to know of a measured answer, a sentence each: which limits are judged by a
    latency that is derived or estimated, and where too many requests failed. `latencies` are those
    of the points at the SLO's percentiles (`points.frame.judged`)."""
    found, n_points = [], len(latencies)
    for metric, (_, percentile) in slo.limits.items():
        if n_derived := int(latencies[f"{metric}_is_derived"].sum()):
            where = "" if n_derived == n_points else f" at {n_derived} of {n_points} points"
            text = f"{METRICS[metric]} was not measured{where}: it is derived from "
            found.append(f"{text}{frame.FORMULAS[metric]}.")
        columns = frame.estimated(points, {f"{metric}_ms": percentile}).get(f"{metric}_ms", [])
        found += _estimate(METRICS[metric], percentile, columns) if columns else []
    failing = latencies[frame.is_refused(latencies, slo)].sort_values(["users", "gpu_profile_id"])
    for row in failing.head(_MOST_FAILURES).to_dict("records"):
        place = f"{row['gpu_profile_id']} with {plural(int(row['users']), 'user')}"
        failed = f"{row['n_failed']:,} of {row['n_ok'] + row['n_failed']:,} requests failed"
        allowed = f"more than the {percent(slo.allowed_failures)} allowed"
        found.append(f"{place}: {failed}, {allowed}. That load does not meet the SLO.")
    if (n_more := len(failing) - _MOST_FAILURES) > 0:
        found.append(f"{plural(n_more, 'more point')} with too many failures.")
    return found


def warning(clauses: Sequence[str], source: Source) -> list[str]:
    """Return the one line that stands at the top of an answer, none if there is nothing to say."""
    text = f"Outside of what {source.known.source} measured: {'; '.join(clauses)}. "
    return [text + "The answer is less certain than it says."] if clauses else []

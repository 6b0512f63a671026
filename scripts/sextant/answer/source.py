"""Which characterizations an answer rests on, and what they say of servers and workload."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sextant.answer.question import PIPELINE_STORE, Question, answers_from_points, id_of
from sextant.base.errors import InputError
from sextant.points.characterization import (
    DEFAULT_SOURCES,
    FILE,
    Characterization,
    combined,
    load_description,
    load_folder,
    shipped_sources,
)
from sextant.points.frame import LENGTHS, complete

SIDES = ("input", "output")
THIS_RUN = "this run"


class Source(NamedTuple):
    """A characterization, or several in one, and where it came from."""

    known: Characterization
    origin: str
    """The path of its store or folder, or `shipped`."""
    longest_request_tokens: int
    memory_utilization: float
    input_tokens: float
    """Mean input length of its workload's requests."""
    output_tokens: float
    note: str | None
    """What a reader has to know of its servers, where it came with such a note."""

    @property
    def gpu_ids(self) -> set[str]:
        """The types of GPU that it has points of."""
        names = self.known.points["gpu_profile_id"].unique()
        return {self.known.profiles[name].gpu.gpu_id for name in names}

    def facts(self) -> dict[str, Any]:
        """Return what an answer says of it."""
        points, of = self.known.points, self.known.descriptions
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
            "lengths_tokens": self.ranges(),
            "longest_request_tokens": self.longest_request_tokens,
            "memory_utilization": self.memory_utilization,
        }

    def ranges(self) -> dict[str, list[float]]:
        """Return the shortest and longest requests of fixed length; of others the means alone."""
        points, means = self.known.points, (self.input_tokens, self.output_tokens)
        if all(each.lengths != "fixed" for each in self.known.descriptions):
            return {side: [mean, mean] for side, mean in zip(SIDES, means, strict=True)}
        lows, highs = points[LENGTHS].min(), points[LENGTHS].max()
        return {
            side: [float(lows[name]), float(highs[name])]
            for side, name in zip(SIDES, LENGTHS, strict=True)
        }


def store_path(database: Path | None) -> Path:
    """Return the given store or folder of measured cells, or the store that the pipeline builds."""
    return database or PIPELINE_STORE


def find_source(question: Question) -> Source:
    """Return the characterization to answer from.

    The one that the question has already; those that `--source` and `--database` name; else the
    pipeline's own, if it knows the LLM; else what ships.

    Raises:
        InputError: a store or folder cannot be read, or lacks what a prediction needs.
    """
    if question.known is not None:
        return _complete(question.known, THIS_RUN)
    names, database = question.sources, question.database
    if not names and database is None and not _knows(PIPELINE_STORE, question.llm_id):
        names = (_newest(question),)
    known, origin = load_sources(names, database, question.workload_id, question.scenario_id)
    if _is_too_little(known, question):
        ships = load_folder(shipped_sources()[DEFAULT_SOURCES[0]])
        text = f"{ships.source} counts beside {known.source}: one LLM alone predicts no other."
        source = _complete(combined([known, ships]), f"{origin} + shipped")
        return source._replace(note=f"{text} {source.note}")
    return _complete(known, origin)


def _is_too_little(known: Characterization, question: Question) -> bool:
    """Return whether a prediction is asked for, and the points of GPUs are of one LLM alone."""
    points, profiles = known.points, known.profiles
    kinds = {profiles[name].gpu.kind for name in points["gpu_profile_id"].unique()}
    is_prediction = not answers_from_points(question, id_of(question), known)
    return is_prediction and points["llm_id"].nunique() == 1 and kinds != {"cpu"}


def _newest(question: Question) -> str:
    """Return the newest source that ships and covers the question.

    A question without lengths is one for a source with a workload of its own. The newest source of
    all answers where none has the GPUs or the engine that are asked for.
    """
    if question.requests is None:
        return DEFAULT_SOURCES[-1]
    if not question.gpu_profile_ids and question.engine is None:
        return DEFAULT_SOURCES[0]
    for name in DEFAULT_SOURCES:
        known = load_folder(shipped_sources()[name])
        gpu_ids = {known.profiles[each].gpu.gpu_id for each in known.points["gpu_profile_id"]}
        wanted = {profile_id.partition("x")[2] for profile_id in question.gpu_profile_ids}
        engines = set(known.points["engine"].dropna())
        if wanted <= gpu_ids and question.engine in {None, *engines}:
            return name
    return DEFAULT_SOURCES[0]


def load_sources(
    names: Sequence[str],
    database: Path | None = None,
    workload_id: str | None = None,
    scenario_id: str | None = None,
) -> tuple[Characterization, str]:
    """Return one characterization, or several as one, and where it is from.

    Args:
        names: each the folder of a characterization, a store, a folder of cells, one that ships or
            one of the store; without any the store's own.
        database: the store; that of the pipeline by default. If `names` choose none of its sources,
            its own counts beside them.
        workload_id: workload of the store; its own by default.
        scenario_id: scenario of the store; its own by default.

    Raises:
        InputError: one cannot be read, or two contradict each other.
    """
    places = [_place(name, database) for name in dict.fromkeys(names)]
    if not names or (database is not None and all(name is None for _, name in places)):
        # A store that is named counts beside what else is.
        places.insert(0, (_store(database), ""))
    is_store = [name is not None for _, name in places]
    for field, value in (("--workload-id", workload_id), ("--scenario-id", scenario_id)):
        if value is not None and not any(is_store):
            fix = "leave it out, or name your own points (--source, --database)"
            problem = f"{', '.join(names)} has one workload and one scenario"
            raise InputError(problem, field=field, fix=fix)
    parts, origins = [], []
    for place, name in places:
        is_shipped = name is None and place in shipped_sources().values()
        origins.append("shipped" if is_shipped else str(place))
        if name is None:
            parts.append(load_folder(place) if is_shipped else _load_own(place))
            continue
        # With what a cell is, which a folder of points does without.
        from sextant.points.measured import load_characterization

        known = load_characterization(place, name or None, workload_id, scenario_id)
        parts.append(_described(known))
    return combined(parts), " + ".join(dict.fromkeys(origins))


def known_sources(
    folders: Iterable[Path], database: Path | None = None
) -> list[tuple[Characterization, str]]:
    """Return what answers can rest on, each with its place: what ships, the store, and folders.

    Raises:
        InputError: a folder or the given store cannot be read.
    """
    found = [(load_folder(folder), "ships") for folder in shipped_sources().values()]
    store = store_path(database)
    if database is not None or store.is_file():
        from sextant.points.measured import load_all

        found += [(known, str(store)) for known in load_all(store)]
    return found + [(_load_own(folder), str(folder)) for folder in folders]


def _load_own(folder: Path) -> Characterization:
    """Return a folder that does not ship, or is a copy of one that does.

    Raises:
        InputError: it makes no sense, or has the name of one that ships and is of others.
    """
    known = load_folder(folder)
    ships = shipped_sources().get(known.source)
    if ships and load_description(ships).attribution != known.descriptions[0].attribution:
        problem = f"{known.source} is a source that ships, measured by others"
        fix = "give yours a name of its own, e.g. my-lab"
        raise InputError(problem, file=folder / FILE, field="source", fix=fix)
    return known


def _described(known: Characterization) -> Characterization:
    """Return what a store has, with the description of its source where that ships too."""
    folder = shipped_sources().get(known.source)
    if folder is None:
        return known
    about = load_description(folder)
    points = complete(known.points, about.defaults)
    return replace(known, points=points, descriptions=(about,))


def _store(database: Path | None) -> Path:
    """Return the store. Raises InputError where none is given and the pipeline has built none."""
    if database is None and not PIPELINE_STORE.is_file():
        ships = ", ".join(shipped_sources())
        fix = f"run the pipeline first (`make demo`), or give --database, or --source: {ships}"
        raise InputError("there is no store here", file=PIPELINE_STORE, fix=fix)
    return store_path(database)


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
    if name in shipped and (database is None or name not in _sources_in(database)):
        return shipped[name], None
    if database is not None or PIPELINE_STORE.is_file():
        return store_path(database), name
    others = f"one that ships ({', '.join(shipped)}), or a store (--database)"
    fix = f"run the pipeline first (`make demo`), or give a folder, {others}"
    problem = f"neither a folder nor what ships is called {name!r}, and there is no store here"
    raise InputError(problem, file=PIPELINE_STORE, field="--source", fix=fix)


def _sources_in(database: Path) -> set[str]:
    from sextant.points.measured import load_all

    return {known.source for known in load_all(database)}


def _knows(store: Path, llm_id: str | None) -> bool:
    if llm_id is None or not store.is_file():
        return False
    from sextant.points.store import open_store

    with open_store(store) as database:
        return bool(database.execute("SELECT 1 FROM llm WHERE llm_id = ?", [llm_id]).fetchall())


def _complete(known: Characterization, origin: str) -> Source:
    longest, utilization = known.longest_request_tokens, known.memory_utilization
    about, lengths = known.descriptions, _lengths(known, origin)
    if longest is None and about:
        stated = [each.longest_request_tokens for each in about if each.longest_request_tokens]
        longest = max([*stated, *_longest_means(known)], default=None)
    if longest is None:
        problem = f"the longest request of {known.source} is not known"
        fix = "ask a source that you measured, or one that ships"
        raise InputError(problem, file=origin, field="--source", fix=fix)
    note = " ".join(each.note for each in about if each.note) or None
    return Source(known, origin, int(longest), float(utilization), *lengths, note)


def _longest_means(known: Characterization) -> list[int]:
    longest = known.points[LENGTHS].sum(axis=1).max()
    return [round(longest)] if longest > 0 else []


def _lengths(known: Characterization, origin: str) -> tuple[float, float]:
    """Return the lengths of the workload's requests: medians over the points' means.

    A point's own mean depends on which requests it could answer.
    """
    lengths = known.points[LENGTHS].median()
    if lengths.isna().any() and known.descriptions:
        (name, *_) = lengths.index[lengths.isna()]
        fix = "add another source, e.g. --source archive:inferencex"
        problem = f"{known.source} does not say {name}: no answer can rest on it alone"
        raise InputError(problem, file=origin, field="--source", fix=fix)
    if lengths.isna().any():
        fix = "see `error` in the cells' requests.parquet, and measure again"
        raise InputError("no point has a request that succeeded", file=origin, fix=fix)
    return tuple(lengths)

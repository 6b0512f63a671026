"""Which characterizations an answer rests on, and what they say of servers and workload."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sextant.answer.question import PIPELINE_STORE, Question
from sextant.base.errors import InputError
from sextant.points.characterization import FILE, Characterization, combined
from sextant.points.folder import (
    DEFAULT_SOURCES,
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
    return _complete(known, origin)


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
        names: each the folder of a characterization, one that ships or one of the store; without
            any the store's own.
        database: the store; that of the pipeline by default.
        workload_id: workload of the store; its own by default.
        scenario_id: scenario of the store; its own by default.

    Raises:
        InputError: one cannot be read, or two contradict each other.
    """
    setting = workload_id, scenario_id
    found = [_load(name, database, *setting) for name in dict.fromkeys(names or (None,))]
    parts, origins = zip(*found, strict=True)
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


def _load(
    name: str | None, database: Path | None, workload_id: str | None, scenario_id: str | None
) -> tuple[Characterization, str]:
    folder = _folder(name, database)
    if folder is None:
        # With what a cell is, which a folder of points does without.
        from sextant.points.measured import load_characterization

        store = store_path(database)
        known = load_characterization(store, name, workload_id, scenario_id)
        return _described(known), str(store)
    for field, value in (("--workload-id", workload_id), ("--scenario-id", scenario_id)):
        if value is not None:
            fix = "leave it out, or name your own points (--source, --database)"
            problem = f"{name} has one workload and one scenario"
            raise InputError(problem, field=field, fix=fix)
    if folder in shipped_sources().values():
        return load_folder(folder), "shipped"
    return _load_own(folder), str(folder)


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


def _folder(name: str | None, database: Path | None) -> Path | None:
    """Return the folder that a source names, None if it is in a store."""
    if name is None:
        if database is None and not PIPELINE_STORE.is_file():
            ships = ", ".join(shipped_sources())
            fix = f"run the pipeline first (`make demo`), or give --database, or --source: {ships}"
            raise InputError("there is no store here", file=PIPELINE_STORE, fix=fix)
        return None
    if (Path(name) / FILE).is_file():
        return Path(name)
    if Path(name).is_dir():
        fix = "write it (docs/characterizations.md), or give a folder of cells as --database"
        problem = "there is no characterization.yaml in this folder"
        raise InputError(problem, file=name, field="--source", fix=fix)
    shipped = shipped_sources()
    if database is None and name in shipped:
        return shipped[name]
    if database is not None or PIPELINE_STORE.is_file():
        return None
    others = f"one that ships ({', '.join(shipped)}), or a store (--database)"
    fix = f"run the pipeline first (`make demo`), or give a folder, {others}"
    problem = f"neither a folder nor what ships is called {name!r}, and there is no store here"
    raise InputError(problem, file=PIPELINE_STORE, field="--source", fix=fix)


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

"""Measurements that an answer rests on: characterizations, found by name, folder or store."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sextant.ask.question import PIPELINE_STORE, Question
from sextant.base.errors import InputError
from sextant.experiment.servers import SIMULATED
from sextant.facts.gpu import GPU
from sextant.points import frame
from sextant.points.characterization import CHAT_SOURCE, Characterization, combined
from sextant.points.folder import FILE, load_description, load_folder, shipped_sources
from sextant.points.frame import LENGTHS
from sextant.points.verdict import ProbeOutcome

SIDES = ("input", "output")
SHIPPED = "shipped"
_IN_MEMORY = "this run"
_MOST_NAMED = 2
"""Parts of a source that each sentence on it names."""


def measured_gpus(characterization: Characterization) -> list[GPU]:
    """Return the GPUs with points, one per GPU profile."""
    profile_ids = characterization.points["gpu_profile_id"].unique()
    return [characterization.profiles[profile_id].gpu for profile_id in profile_ids]


class Source(NamedTuple):
    """A characterization, or several in one, and where it came from."""

    characterization: Characterization
    origin: str
    """Path of its store or folder, or `shipped`."""
    longest_request_tokens: int
    memory_utilization: float
    input_tokens: float
    """Mean input length of its workload's requests."""
    output_tokens: float
    note: str | None
    """What a reader has to know of its servers, where the source says so; None of many parts."""

    @property
    def names(self) -> list[str]:
        """Names of its parts."""
        return self.characterization.source.split(" + ")

    @property
    def label(self) -> str:
        """What a sentence calls it: its name, or of more than two parts how many they are."""
        n_parts = len(self.names)
        return self.characterization.source if n_parts <= _MOST_NAMED else f"{n_parts} sources"

    @property
    def gpu_ids(self) -> set[str]:
        """Types of GPU with points."""
        return {gpu.gpu_id for gpu in measured_gpus(self.characterization)}

    def gpus_left_out(self, llm_ids: Collection[str]) -> set[str]:
        """Return the types of GPU on which the source could not run these LLMs, and ran none."""
        feasible = set()
        omitted = set()
        for row in self.characterization.feasibility.itertuples():
            if row.llm_id in llm_ids:
                gpu_id = self.characterization.profiles[row.gpu_profile_id].gpu.gpu_id
                if row.is_feasible:
                    feasible.add(gpu_id)
                if row.verdict == ProbeOutcome.OMITTED:
                    omitted.add(gpu_id)
        return omitted - feasible

    @property
    def fixed(self) -> list[str]:
        """Names of the parts in which each point has its own request lengths."""
        descriptions = self.characterization.descriptions
        return [part.source for part in descriptions if part.lengths == "fixed"]

    @property
    def n_llms(self) -> int:
        """LLMs with points."""
        return int(self.characterization.points["llm_id"].nunique())

    @property
    def n_gpu_profiles(self) -> int:
        """GPU profiles with points."""
        return int(self.characterization.points["gpu_profile_id"].nunique())

    @property
    def length_ranges(self) -> list[list[float]]:
        """Least and largest mean tokens of a request, of input and of output.

        The ends are equal where all points share one workload.
        """
        if not self.fixed:
            return [[mean, mean] for mean in (self.input_tokens, self.output_tokens)]
        ends = self.characterization.points[LENGTHS].agg(["min", "max"])
        return ends.to_numpy(float).T.tolist()

    @property
    def attributions(self) -> list[str]:
        """Whose data it is, and under which licence, one entry per part."""
        return [
            f"{part.attribution} ({part.licence})" for part in self.characterization.descriptions
        ]

    @property
    def left_out_notes(self) -> list[str]:
        """Which of its points do not count; of many parts the entry in an answer alone says so."""
        return [*self.characterization.left_out] if len(self.names) <= _MOST_NAMED else []

    def facts(self) -> dict[str, Any]:
        """Return the source's entry in an answer."""
        return {
            "source": self.characterization.source,
            "origin": self.origin,
            "note": self.note,
            "attributions": self.attributions,
            "n_llms": self.n_llms,
            "n_gpu_profiles": self.n_gpu_profiles,
            "n_points": len(self.characterization.points),
            "mean_input_tokens": self.input_tokens,
            "mean_output_tokens": self.output_tokens,
            "lengths_tokens": dict(zip(SIDES, self.length_ranges, strict=True)),
            "longest_request_tokens": self.longest_request_tokens,
            "memory_utilization": self.memory_utilization,
            "left_out": [*self.characterization.left_out],
        }


def find_source(question: Question) -> Source:
    """Return the characterization to answer from.

    In this order: points in memory (`Question.characterization`); what `--source` and `--database`
    name; the pipeline's own store, if it has the LLM; what ships. One LLM alone predicts no other,
    so what ships of today's engines counts beside points of a single LLM.

    Raises:
        InputError: a store or folder cannot be read, or lacks what a prediction needs.
    """
    if question.characterization is not None:
        return _complete(question.characterization, _IN_MEMORY)
    is_named = bool(question.sources) or question.database is not None
    if not is_named and not _is_in_pipeline_store(question.llm_id):
        _refuse_choices("what ships", question.workload_id, question.scenario_id)
        return _complete(_shipped_for(question), SHIPPED)

    characterization, origin = load_sources(
        question.sources, question.database, question.workload_id, question.scenario_id
    )
    points = characterization.points
    kinds = {gpu.kind for gpu in measured_gpus(characterization)}
    is_prediction = not question.is_answered_by_points(characterization)
    if is_prediction and points["llm_id"].nunique() == 1 and kinds != {"cpu"}:
        ships = todays_sources()
        source = _complete(combined([characterization, ships]), f"{origin} + {SHIPPED}")
        text = f"What ships counts beside {characterization.source}: "
        text += "one LLM alone predicts no other."
        return source._replace(note=text)
    return _complete(characterization, origin)


def _is_in_pipeline_store(llm_id: str | None) -> bool:
    if llm_id is None or not PIPELINE_STORE.is_file():
        return False
    from sextant.points.store import open_store

    with open_store(PIPELINE_STORE) as store:
        return bool(store.execute("FROM llm WHERE llm_id = ?", [llm_id]).fetchall())


def _shipped_for(question: Question) -> Characterization:
    """Return what a question rests on that names no source: all that ships of today's engines.

    TGIS's points answer a question without lengths, as they have a workload of their own, and one
    about GPUs or an engine that they alone cover.
    """
    chat_folder = shipped_sources()[CHAT_SOURCE]
    if question.requests is None:
        return load_folder(chat_folder)
    todays = todays_sources()
    if _covers(todays, question):
        return todays
    chats = load_folder(chat_folder)
    return chats if _covers(chats, question) else todays


def todays_sources() -> Characterization:
    """Return all that ships of engines with CUDA graphs, each source with effects of its own."""
    folders = [path for name, path in shipped_sources().items() if name != CHAT_SOURCE]
    return combined([load_folder(folder) for folder in folders])


def _covers(characterization: Characterization, question: Question) -> bool:
    """Return whether the GPUs and the engine that a question names were measured."""
    wanted = {profile_id.partition("x")[2] for profile_id in question.gpu_profile_ids}
    gpu_ids = {gpu.gpu_id for gpu in measured_gpus(characterization)}
    engines = {None, *characterization.points["engine"].dropna()}
    return wanted <= gpu_ids and question.engine in engines


class _Location(NamedTuple):
    """Where a source is."""

    path: Path
    store_source: str | None
    """Its name in a store, empty for the store's own source; None: `path` is a folder."""

    @classmethod
    def of(cls, name: str, database: Path | None) -> "_Location":
        """Return where a source is. Raises InputError: nothing has this name."""
        path = Path(name)
        shipped = shipped_sources()
        if (path / FILE).is_file():
            return cls(path, None)
        if path.is_file() or (path.is_dir() and next(path.rglob("run.json"), None)):
            return cls(path, "")
        if path.is_dir():
            fix = "write it (docs/adding.md), or give a folder of `sextant load` runs"
            problem = "there is no characterization.yaml in this folder"
            raise InputError(problem, file=name, field="--source", fix=fix)

        is_in_store = False
        if name in shipped and database is not None:
            from sextant.points.measured import load_all

            is_in_store = any(part.source == name for part in load_all(database))
        if name in shipped and not is_in_store:
            return cls(shipped[name], None)
        if database is not None or PIPELINE_STORE.is_file():
            return cls(database or PIPELINE_STORE, name)
        others = f"one that ships ({', '.join(shipped)}), or a store (--database)"
        fix = f"run the pipeline first (`make demo`), or give a folder, {others}"
        problem = f"neither a folder nor what ships is called {name!r}, and there is no store here"
        raise InputError(problem, file=PIPELINE_STORE, field="--source", fix=fix)

    @property
    def origin(self) -> str:
        """What an answer says of it: `shipped`, or the path."""
        is_shipped = self.store_source is None and self.path in shipped_sources().values()
        return SHIPPED if is_shipped else str(self.path)

    def load(self, workload_id: str | None, scenario_id: str | None) -> Characterization:
        """Return its points. A store has several workloads and scenarios; None: its own."""
        if self.origin == SHIPPED:
            return load_folder(self.path)
        if self.store_source is None:
            return _load_own(self.path)
        # With the cells' definitions, which a folder of points lacks.
        from sextant.points.measured import load_characterization

        characterization = load_characterization(
            self.path, self.store_source or None, workload_id, scenario_id
        )
        shipped = shipped_sources()
        if characterization.source not in shipped:
            return characterization
        description = load_description(shipped[characterization.source])
        points = frame.complete(characterization.points, description.defaults)
        return replace(characterization, points=points, descriptions=(description,))


def load_sources(
    names: Sequence[str],
    database: Path | None = None,
    workload_id: str | None = None,
    scenario_id: str | None = None,
) -> tuple[Characterization, str]:
    """Return the named sources as one characterization, and where it is from.

    Args:
        names: folders of characterizations, stores, folders of cells, names of shipped sources or
            of sources in the store. Without names, the store's own source.
        database: the store, by default the pipeline's. A store that is given counts beside
            folders and shipped sources.
        workload_id: a workload of the store, its own by default.
        scenario_id: a scenario of the store, its own by default.

    Raises:
        InputError: a source cannot be read, or two contradict each other.
    """
    locations = [_Location.of(name, database) for name in dict.fromkeys(names)]
    has_store = any(location.store_source is not None for location in locations)
    if not names or (database is not None and not has_store):
        if database is None and not PIPELINE_STORE.is_file():
            ships = ", ".join(shipped_sources())
            fix = f"run the pipeline first (`make demo`), or give --database, or --source: {ships}"
            raise InputError("there is no store here", file=PIPELINE_STORE, fix=fix)
        locations.insert(0, _Location(database or PIPELINE_STORE, ""))
        has_store = True
    if not has_store:
        _refuse_choices(", ".join(names), workload_id, scenario_id)

    parts = [location.load(workload_id, scenario_id) for location in locations]
    for part in parts:
        if (part.points["engine"] == SIMULATED).any():
            problem = f"the points of {part.source} were simulated, not measured"
            fix = "measure (another engine.name), or name another source"
            raise InputError(problem, field="--source, --database", fix=fix)
    origins = dict.fromkeys(location.origin for location in locations)
    return combined(parts), " + ".join(origins)


def _refuse_choices(what: str, workload_id: str | None, scenario_id: str | None) -> None:
    """Refuse to choose a workload or a scenario of what has one of each."""
    for field, value in (("--workload-id", workload_id), ("--scenario-id", scenario_id)):
        if value is not None:
            fix = "leave it out, or name your own points (--source, --database)"
            raise InputError(f"{what} has one workload and one scenario", field=field, fix=fix)


def known_sources(
    folders: Iterable[Path], database: Path | None = None
) -> list[tuple[Characterization, str]]:
    """Return all sources of answers, each with its location: shipped ones, the store, folders.

    Raises:
        InputError: a folder or the given store cannot be read.
    """
    sources = [(load_folder(folder), "ships") for folder in shipped_sources().values()]
    store = database or PIPELINE_STORE
    if database is not None or store.is_file():
        from sextant.points.measured import load_all

        sources += [(characterization, str(store)) for characterization in load_all(store)]
    return sources + [(_load_own(folder), str(folder)) for folder in folders]


def _load_own(folder: Path) -> Characterization:
    """Return a folder that does not ship, or is a copy of one that does.

    Raises:
        InputError: it makes no sense, or has the name of a shipped source but another author.
    """
    characterization = load_folder(folder)
    ships = shipped_sources().get(characterization.source)
    attribution = characterization.descriptions[0].attribution
    if ships and load_description(ships).attribution != attribution:
        problem = f"{characterization.source} is a source that ships, measured by others"
        fix = "give yours a name of its own, e.g. my-lab"
        raise InputError(problem, file=folder / FILE, field="source", fix=fix)
    return characterization


def _complete(characterization: Characterization, origin: str) -> Source:
    """Return a characterization with its longest request and its workload's mean lengths.

    The mean lengths are medians over points: a point's own mean depends on which of the requests
    its server could answer.
    """
    points = characterization.points
    descriptions = characterization.descriptions
    lengths = points[LENGTHS].median()
    if lengths.isna().any():
        problem = "no point has a request that succeeded"
        field = None
        fix = "see `error` in the cells' requests.parquet, and measure again"
        if descriptions:
            missing = lengths.index[lengths.isna()][0]
            problem = f"{characterization.source} does not say {missing}: no answer can rest on it "
            problem += "alone"
            fix = "add another source, e.g. --source archive:inferencex"
            field = "--source"
        raise InputError(problem, file=origin, field=field, fix=fix)

    longest = characterization.longest_request_tokens
    if longest is None and descriptions:
        stated = [
            part.longest_request_tokens for part in descriptions if part.longest_request_tokens
        ]
        longest = max([*stated, round(points[LENGTHS].sum(axis=1).max())])
    if longest is None:
        problem = f"the longest request of {characterization.source} is not known"
        fix = "ask a source that you measured, or one that ships"
        raise InputError(problem, file=origin, field="--source", fix=fix)

    noted = descriptions if len(descriptions) <= _MOST_NAMED else ()
    return Source(
        characterization,
        origin,
        int(longest),
        float(characterization.memory_utilization),
        input_tokens=float(lengths[LENGTHS[0]]),
        output_tokens=float(lengths[LENGTHS[1]]),
        note=" ".join(part.note for part in noted if part.note) or None,
    )

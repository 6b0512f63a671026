"""Which characterization an answer rests on, and what it says of servers and workload."""

from pathlib import Path
from typing import Any, NamedTuple

from sextant.advice.question import Question
from sextant.base.errors import InputError
from sextant.characterizations.characterization import Characterization, load_characterization
from sextant.characterizations.points import LENGTHS
from sextant.characterizations.shipped import (
    DEFAULT_NAME,
    load_shipped,
    shipped_description,
    shipped_sources,
)
from sextant.store.connection import open_store
from sextant.store.of_cells import store_of_cells

PIPELINE_STORE = Path("results") / "sextant.duckdb"


class Source(NamedTuple):
    """A characterization and where it came from."""

    known: Characterization
    origin: str
    """The store's path, or `shipped`."""
    longest_request_tokens: int
    memory_utilization: float
    input_tokens: float
    """Mean input length of its workload's requests."""
    output_tokens: float
    note: str | None
    """What a reader has to know of its servers, where it ships with such a note."""

    def facts(self) -> dict[str, Any]:
        """Return what an answer says of it."""
        points = self.known.points
        return {
            "source": self.known.source,
            "origin": self.origin,
            "note": self.note,
            "n_llms": int(points["llm_id"].nunique()),
            "n_gpu_profiles": int(points["gpu_profile_id"].nunique()),
            "n_points": len(points),
            "mean_input_tokens": self.input_tokens,
            "mean_output_tokens": self.output_tokens,
            "longest_request_tokens": self.longest_request_tokens,
            "memory_utilization": self.memory_utilization,
        }


def store_path(database: Path | None, source: str | None = None) -> Path:
    """Return the given store, or the one that the pipeline builds for a source.

    Of a folder of measured cells it is the store of these, built now.
    """
    if database is not None and database.is_dir():
        return store_of_cells(database)
    kind, _, name = (source or "").partition(":")
    default = Path("results", name, "sextant.duckdb") if kind == "archive" else PIPELINE_STORE
    return database or default


def find_source(question: Question) -> Source:
    """Return the characterization to answer from.

    The one that `--database` and `--source` name; else the pipeline's own, if it knows the LLM;
    else the one that ships.

    Raises:
        InputError: the store cannot be read, or lacks what a prediction needs.
    """
    asked = store_path(question.database, question.source)
    shipped = shipped_sources()
    if question.database is None and question.source is None and not _knows(asked, question.llm_id):
        return _shipped(DEFAULT_NAME, question)
    if question.database is None and not asked.is_file() and question.source in shipped:
        return _shipped(shipped[question.source].name, question)
    known = load_characterization(
        asked, question.source, question.workload_id, question.scenario_id
    )
    return _complete(known, str(asked))


def _shipped(name: str, question: Question) -> Source:
    for field in ("workload_id", "scenario_id"):
        if getattr(question, field) is not None:
            fix = "leave it out, or name your own points (--source, --database)"
            problem = "what ships has one workload and one scenario"
            raise InputError(problem, field=f"--{field.replace('_', '-')}", fix=fix)
    return _complete(load_shipped(name), "shipped")


def _knows(store: Path, llm_id: str | None) -> bool:
    if llm_id is None or not store.is_file():
        return False
    with open_store(store) as database:
        return bool(database.execute("SELECT 1 FROM llm WHERE llm_id = ?", [llm_id]).fetchall())


def _complete(known: Characterization, origin: str) -> Source:
    # The publication's store does not say; what ships of it does.
    about = known.description or shipped_description(known.source)
    longest, utilization = known.longest_request_tokens, known.memory_utilization
    if longest is None and about is not None:
        longest = about.longest_request_tokens or _longest_mean(known)
        utilization = about.memory_utilization or utilization
    if longest is None:
        problem = f"the longest request of {known.source} is not known"
        fix = "ask a source that you measured, or one that ships"
        raise InputError(problem, file=origin, field="--source", fix=fix)
    note = about.note if about else None
    return Source(known, origin, int(longest), float(utilization), *_lengths(known, origin), note)


def _longest_mean(known: Characterization) -> int | None:
    longest = known.points[LENGTHS].sum(axis=1).max()
    return round(longest) if longest > 0 else None


def _lengths(known: Characterization, origin: str) -> tuple[float, float]:
    """Return the lengths of the workload's requests: medians over the points' means.

    A point's own mean depends on which requests it could answer.
    """
    lengths = known.points[LENGTHS].median()
    if lengths.isna().any():
        fix = "see `error` in the cells' requests.parquet, and measure again"
        raise InputError("no point has a request that succeeded", file=origin, fix=fix)
    return tuple(lengths)

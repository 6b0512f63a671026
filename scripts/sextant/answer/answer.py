"""An answer: what to rent for one LLM, how sure that is, what it costs, and what it rests on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sextant.answer.source import Source
from sextant.base.files import Row
from sextant.facts.gpu import GPUProfile, old_price_lines, price_origins, share_lines
from sextant.pages.blocks import Document, Widget

if TYPE_CHECKING:
    import pyarrow as pa


class Option(NamedTuple):
    """Replicas of a GPU profile that serve the whole load; all None where nothing does."""

    gpu_profile_id: str | None = None
    replicas: int | None = None
    users_per_replica: int | None = None
    usd_per_hour: float | None = None
    """Of all replicas."""
    probability_met: float | None = None
    """That all limits hold; None where nothing says how sure the latencies are."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Option":
        """Return the option of a row that has these columns, and maybe others."""
        return cls(*(row.get(name) for name in cls._fields))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is answered for one LLM, by whichever way the replicas are sized."""

    llm_id: str
    basis: str
    """What the latencies come from: `measured`, a predictor's name, or `simulated`."""
    chosen: Option
    """The recommended option."""
    alternatives: Sequence[Row]
    """One row per GPU profile: its `status`, and what it takes, or why it is none."""
    slo: Row
    risk: float | None
    """Largest probability of missing the SLO that was asked for."""
    source: Source
    profiles: Collection[GPUProfile]
    """The candidates, with their prices."""
    warnings: Sequence[str] = ()
    """What to know before the answer is used: assumptions, estimates, limits of the evidence."""
    serving: Row | None = None
    """Lengths, engine and precision that were asked about; None: as measured."""
    headroom: Row | None = None
    """Room to each limit (`sextant.decide.headroom`); None where it is not known."""
    evidence: Sequence[Row] = ()
    """The nearest measurements."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What this way of sizing adds, by its name in the JSON."""
    widget: Callable[[], Widget | None] = field(default=lambda: None)
    """Return the part of its page in which the question can be changed, if there is one."""

    @property
    def has_option(self) -> bool:
        """Whether any option is recommended."""
        return self.chosen.gpu_profile_id is not None

    @cached_property
    def data(self) -> dict[str, Any]:
        """What a program reads: plain values, by name."""
        origins = price_origins((each.price_source, each.price_as_of) for each in self.profiles)
        lines = old_price_lines(origins)
        name, replicas, *_ = self.chosen
        own = next((each for each in self.profiles if each.gpu_profile_id == name), None)
        if own is not None and replicas is not None:
            lines += share_lines(own, replicas)
        return {
            "llm_id": self.llm_id,
            **self.chosen._asdict(),
            "price_source": own and own.price_source,
            "price_as_of": own and own.price_as_of,
            "basis": self.basis,
            "risk": self.risk,
            "slo": self.slo,
            "serving": self.serving,
            "alternatives": [*self.alternatives],
            "headroom": self.headroom,
            "evidence": [*self.evidence],
            "characterization": self.source.facts(),
            "prices": [each._asdict() for each in origins],
            "warnings": [*self.warnings, *lines],
            **self.more,
        }


def write_results(
    outputs: Mapping[str, str | Path],
    rows: Sequence[Mapping[str, Any]],
    schema: "pa.Schema",
    document: Document,
) -> None:
    """Write the answers of a rule: the `table`, the `html` page and its `json`, in one folder.

    They appear together: a full disk leaves no new one beside an old one.
    """
    import pyarrow as pa

    from sextant.base.files import atomic_folder, write_parquet
    from sextant.pages.page import write_page

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    places = {kind: Path(path) for kind, path in outputs.items()}
    with atomic_folder(places["json"].parent, last=places["json"].name) as new:
        write_parquet(new / places["table"].name, table, document.origin or {})
        write_page(document, new / places["html"].name, new / places["json"].name)

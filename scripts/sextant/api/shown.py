"""An answer of the library: it shows itself as JSON, frame, text, page and card."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sextant.base.files import jsonable
from sextant.pages.blocks import Block, Document, Headline, Note, Section, Table, as_text

if TYPE_CHECKING:
    import pandas as pd

    from sextant.answer.answer import Answer
    from sextant.answer.budget import BudgetAnswer
    from sextant.deploy.deployment import ReplicaDeployment
    from sextant.deploy.targets import Target


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownAnswer:
    """What a function of the library returns.

    Attributes
    ----------
    result
        The answer with its types, e.g. a `PredictedRecommendation`.
    has_solution
        Whether anything meets what was asked for.
    """

    result: Any
    document: Callable[[bool], Document]
    """Returns it in words; with True, for a page, on which a question can be changed."""
    rows: Sequence[Mapping[str, Any]]
    """One per option, GPU profile, demand or cell."""
    has_solution: bool = True
    deployments: Callable[[], Sequence["ReplicaDeployment"]] = field(default=lambda: ())
    """Returns what starts the answer; nothing where nothing is recommended, or nothing serves."""
    files: TemporaryDirectory[str] | None = field(default=None)
    """Holds what was passed as a frame or a dictionary; it is removed with the answer."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value that the command line prints with `--format json`."""
        document = self.document(False)
        facts: dict[str, Any] = jsonable({**document.data, "text": as_text(document)})
        return facts

    def to_frame(self) -> "pd.DataFrame":
        """Return a frame with a row per option or GPU profile, demand or cell."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows])

    def to_html(self) -> str:
        """Return the page that the command line writes with `--format html`."""
        from sextant.pages.page import as_page

        return as_page(self.document(True))

    def deployment(self, target: "Target") -> dict[str, str]:
        """Return the files that start the answer, by name: what `--deploy` writes.

        Parameters
        ----------
        target
            `vllm`, `sglang` or `trtllm` for the command alone; `compose`, `kubernetes`,
            `production-stack` or `kserve`.

        Raises
        ------
        InputError
            The platform is unknown or cannot do what is needed, or nothing is recommended.
        """
        from sextant.deploy.files import deployment_files

        return deployment_files(self.deployments(), target)

    def with_files(self, files: TemporaryDirectory[str] | None) -> "ShownAnswer":
        """Return the answer that keeps these files."""
        return replace(self, files=files)

    def __str__(self) -> str:
        """Return the text that the command line prints."""
        return as_text(self.document(False))

    def __repr__(self) -> str:
        """Return the headline."""
        headlines = [block.text for block in self.blocks if isinstance(block, Headline)]
        return f"<{type(self).__name__}: {(headlines or [self.document(False).title])[0]}>"

    @property
    def blocks(self) -> list[Block]:
        """The blocks of its text, those of sections included."""
        return [*_blocks_in(self.document(False).blocks)]

    def _repr_html_(self) -> str:
        """Return a card for a notebook: the headline, the warnings, the options."""
        document = self.document(False)
        prose = [block for block in document.blocks if isinstance(block, Headline | Note)]
        parts = [
            f"<p><strong>{escape(block.text)}</strong></p>"
            for block in prose
            if isinstance(block, Headline)
        ]
        parts += [
            f"<p>⚠ {escape(block.text)}</p>"
            for block in prose
            if isinstance(block, Note) and block.kind == "warning"
        ]
        if not parts:
            parts = [f"<p>{escape(block.text)}</p>" for block in prose]

        tables = [block for block in self.blocks if isinstance(block, Table) and block.rows]
        for table in tables[:1]:
            head = "".join(f"<th>{escape(label)}</th>" for label in table.header)
            rows = [
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                for row in table.cells[: table.n_rows_in_text]
            ]
            parts.append(f"<table><tr>{head}</tr>{''.join(rows)}</table>")
        return f"<div>{''.join(parts)}</div>"


def shown_budget(answer: "BudgetAnswer") -> ShownAnswer:
    """Return what a budget serves, as an answer of the library."""
    from sextant.answer.budget import budget_document

    return shown_options(answer, lambda _: budget_document(answer))


def shown_options(answer: "Answer", document: Callable[[bool], Document]) -> ShownAnswer:
    """Return what is answered for one LLM, with a row per GPU profile."""
    return ShownAnswer(
        result=answer,
        document=document,
        rows=[outcome.to_dict() for outcome in answer.alternatives],
        has_solution=answer.has_option,
        deployments=answer.deployments,
    )


def _blocks_in(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Section):
            yield from _blocks_in(block.blocks)

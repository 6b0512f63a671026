"""The files of a rule's answers: a table, a page and its JSON, written together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sextant.pages.blocks import Document

if TYPE_CHECKING:
    import pyarrow as pa


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
    paths = {kind: Path(path) for kind, path in outputs.items()}
    with atomic_folder(paths["json"].parent, last=paths["json"].name) as folder:
        write_parquet(folder / paths["table"].name, table, document.origin or {})
        write_page(document, folder / paths["html"].name, folder / paths["json"].name)

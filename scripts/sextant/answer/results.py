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

    from sextant.base.files import write_parquet
    from sextant.base.whole_files import atomic_folder
    from sextant.pages.page import write_page

    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    table_path, page_path, json_path = (Path(outputs[name]) for name in ("table", "html", "json"))
    with atomic_folder(json_path.parent, last=json_path.name) as folder:
        write_parquet(folder / table_path.name, table, document.origin or {})
        write_page(document, folder / page_path.name, folder / json_path.name)

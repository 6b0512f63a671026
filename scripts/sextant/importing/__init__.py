"""Cells that other people or clusters measured, taken over into the results here."""

from sextant.importing.merge import import_cells

__all__ = ["import_cells"]

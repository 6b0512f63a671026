"""The report: the answer and how much to trust it, as a page, as JSON and as text."""

from sextant.report.page import write_report
from sextant.report.text import summary_text

__all__ = ["summary_text", "write_report"]

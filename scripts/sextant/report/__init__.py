"""The report: the answer and how much to trust it, as a page, as JSON and as text."""

from sextant.report.page import summary_text, write_report

__all__ = ["summary_text", "write_report"]

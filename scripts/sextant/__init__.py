"""Sextant: from production traces of LLM requests to the cheapest GPU that meets an SLO."""

__version__ = "0.3.0"

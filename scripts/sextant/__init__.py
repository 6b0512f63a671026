"""Sextant: from production traces of LLM requests to the cheapest GPU that meets an SLO."""

from importlib.metadata import version

__version__ = version("sextant")

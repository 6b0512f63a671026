"""Sextant: from production traces of LLM requests to the cheapest GPU that meets an SLO."""

from importlib.metadata import version
from pathlib import Path

__version__ = version("sextant")

PROJECT = Path(__file__).parents[2]
"""The checkout: facts, schemas and plugins lie there, beside the library."""

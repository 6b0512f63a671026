"""Ingest: a production trace in its publisher's format becomes the normalised trace."""

from sextant.ingest.job import ingest_trace

__all__ = ["ingest_trace"]

"""Decisions: which GPU profile and how many replicas (eq. 1-3), and how good they are (eq. 5-7)."""

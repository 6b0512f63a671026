"""The most replicas that are tried: alone, for the options of commands that wait for no room."""

MOST_REPLICAS = 4096
"""Of a GPU profile, or of a pool."""

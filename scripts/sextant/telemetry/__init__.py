"""Telemetry: what devices and servers report over time, sampled by a process of its own."""

# How the UUID of an instance of a divided GPU begins.
MIG_PREFIX = "MIG-"

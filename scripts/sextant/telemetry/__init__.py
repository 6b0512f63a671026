"""Telemetry: what devices and servers report over time, sampled by a process of its own."""

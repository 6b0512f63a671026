"""What servers and devices do while a level is measured.

In go a `WatchPlan` (devices, processes and base URLs of the servers), out come two tables, of the
devices and of the servers, and warnings. Read `watcher` first, which starts a process a level;
`process` is what runs in it, `series` reads a source on a grid of times, and `nvml`, `dcgm` and
`cpu` are the sources.
"""

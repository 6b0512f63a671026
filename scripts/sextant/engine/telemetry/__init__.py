"""What servers and devices do while a level is measured.

In go a `WatchPlan` (devices, processes and base URLs of the servers), out come two tables, of the
devices and of the servers, and warnings. `watcher` starts one process per level, `process` runs in
it, `gauges` are the sources that it reads, `host` describes the machine.
"""

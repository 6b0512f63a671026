"""Inference servers: what the benchmark needs of an engine, and the engines that can do it.

In go an `EngineSettings` and, for servers that are started here, a `ServerSpec` each. Out come
`Server`s that answer, and that end for certain if they were started here. Read `protocol` first,
then `registry`; `endpoint` is the shortest engine, `vllm` (with `vllm_command`: command line and
log) the one that starts servers. `devices` picks what they run on and watches their memory, `http`
asks servers and reads their metrics.

While a level is measured, `watcher` starts one process per level (`watching_process`), which reads
devices and servers (`gauges`); `host` describes the machine.
"""

"""Inference servers: what the benchmark needs of an engine, and the engines that can do it.

In go an `EngineSettings` and, for servers that are started here, a `ServerSpec` each. Out come
`Server`s that answer, and that end for certain if they were started here. Read `protocol` first,
then `registry`; `endpoint` is the shortest engine, `vllm` (with `vllm_command` and `vllm_log`) the
one that starts servers. `devices` picks what they run on and watches their memory, `http` asks
servers, `prometheus` reads their metrics, `telemetry/` watches devices and servers during a level.
"""

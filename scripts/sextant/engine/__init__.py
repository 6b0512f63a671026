"""Inference servers: what the benchmark needs of an engine, and the engines that can do it.

In go an `EngineSettings` and, for servers that are started here, a `ServerSpec` each. Out come
`Server`s that answer, and that end for certain if they were started here. Read `protocol` first,
then `endpoint` and `vllm`. `watcher` starts a process a level, which reads `gauges`.
`prometheus` reads metrics of servers that run already.
"""

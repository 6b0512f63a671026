"""Processes that start, watch and stop each other, and what a job must not leave behind.

In: the log, the result folder and the commands of a job. Out: a log that is complete, a lock and a
scratch folder that disappear with the job (SIGKILL included), servers that stop with it.

Read `job_log` first: it opens a job's log and stops the job in order. `parent_watch` stops it with
its Snakemake. `lock`, `scratch` and `caretaker` hold a job's lock and scratch folder, `keeper`
stops all processes below it, `port` reserves a port.
"""

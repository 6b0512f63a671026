"""Processes that start, watch and end each other; nothing here knows what they run.

`job_log` opens a job's log and ends the job in order; `parent_watch` ends it with its Snakemake.
`lock`, `scratch` and `caretaker` give a job a lock and a folder that go when it ends, in whatever
way. `keeper` ends all that runs below it; `port` holds a port for the life of a server.
"""

"""An answer becomes what starts it: the server's command, its container, the files of a platform.

A case and a GPU profile go in; a `ReplicaDeployment` comes out, and from it files by name. Read
`settings.py` (what an answer assumes of a server), then `command.py` (the engine's own words for
it), `deployment.py` (replicas, container, start), then one file per platform and `files.py`, which
has them all.
"""

"""The command line `sextant`: options become the library's types, results are printed.

Read `app` (the commands), `printing` (how a command is made of a function with groups of options,
which `api` has), then a module for each part: `answer`, `load`, `workload`, `cluster`. Libraries
are imported in the commands, so that `sextant --help` is quick.
"""

"""The command line `sextant`: options become the library's types, results are printed.

Read `app` (the commands), `options` (groups of options, shared by commands), then a module for
each part: `workload`, `load` with `load_levels`, `advice`, `cluster`, `measure`. Libraries are
imported in the commands, so that `sextant --help` is quick.
"""

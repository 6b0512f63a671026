"""The command line `sextant`: options become the library's types, results are printed.

Read `app` (the commands), `options` (groups of options, and how results are printed), then a
module for each part: `workload`, `load` (with `load_options`), `answer` (with
`asked`), `capacity`, `simulate`, and `cluster` (doctor, plan, measure, fleet). Libraries are
imported in the commands, so that `sextant --help` is quick.
"""

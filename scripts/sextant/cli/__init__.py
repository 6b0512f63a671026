"""The command line `sextant`: options become the library's types, results are printed.

Read `app` (the commands), `options` (groups of options), then a module for each part. Libraries are
imported in the commands, so that `sextant --help` is quick.
"""

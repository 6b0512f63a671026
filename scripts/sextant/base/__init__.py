"""What every room uses; nothing here knows of LLMs.

In: files, sheets and texts of users and strangers. Out: typed and checked values, or one
`InputError` that names file, line, field and fix; files that are written whole or not at all.

Read `errors` first. `files` reads and writes files, `sheets` and `yaml_files` read and check what
users write (the latter merges configuration files too), `ids` checks ids and makes file names of
them, `text` keeps terminals and logs safe, `progress` shows progress, `imports` finds the library
files that a rule depends on.
"""

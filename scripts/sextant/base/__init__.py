"""What every room uses and what knows nothing of LLMs.

Read `errors` first: every complaint about bad input is an `InputError`. `files` reads and writes
files whole, `sheets` reads and checks tables, `ids` says which texts may be ids, `imports` says
which files of the library a rule depends on.
"""

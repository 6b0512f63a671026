"""What every room uses; nothing here knows of LLMs.

In: files, sheets and texts of users and strangers. Out: typed and checked values, or one
`InputError` that names file, line, field and fix; files that are written whole or not at all.

Read `errors` first. `files` reads and writes files and rows, and finds the library files that a
rule depends on; `sheets` reads and checks what users write, and makes file names of their ids;
`network` has URLs, keys and ports; `resources` knows where the files that ship lie. Of a job:
`job_log` opens its log and stops it in order, `scratch` has its lock and its scratch folder, which
disappear with it (SIGKILL included); `caretaker` and `keeper` are processes that remove what it
leaves and stop its servers.
"""

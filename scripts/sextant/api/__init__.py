"""What `import sextant` offers: groups of options go in, answers that show themselves come out.

The command line builds its commands from the same groups, so that an option is written once. Read
`groups` (an option and a group), `question_options` and `traffic` (the groups that several answers
share), then a module for each answer: `recommend`, `capacity`, `simulate`, `fleet`, `plan`,
`traces` (`ingest` and `fit`), `compare`. `shown` is what they return; `keywords` makes functions
with keywords of them, and `frames` writes a trace that is passed as a frame.
"""

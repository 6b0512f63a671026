"""What a person asks on the command line, and the answer: a recommendation with its reasons.

In go the options of a command as a `Question` and a characterization; out come facts for JSON,
lines of text or a page. Read `question` with `requests`, `source` and `offer` (what is asked, and
of what), `compared` (answers by eq. 1-3) and `predicted` with `serving`, `options`,
`evidence`, `basis` and `cost` (answers from joint draws), then `answer`, which puts them together;
`answer_text` and `page` say it. `explanation` shows the terms of a latency, `scores` judges
predictors.
"""

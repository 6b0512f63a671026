"""What the kinds of answers share: the option to rent, its words, and what is compared with it.

In go a `Case` and sized options; out comes what `recommend`, `capacity`, `fleet` and `plan` have in
common. Read `option` (replicas of a GPU profile, and which options others beat), `answer` (what all
answers on one LLM have), `certainty` (price against probability, and what makes certainty dear),
`budget` (the largest load that a budget serves), `words` (a deployment, its limits and its sources
in words), then what is compared with the answer: `drafting` (speculation), `pools` (prefill and
decode on separate replicas). `rate_sizer` sizes requests that arrive at a rate, for every kind of
answer. `results` writes the files of a rule.
"""

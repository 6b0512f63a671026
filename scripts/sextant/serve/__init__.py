"""The library over HTTP and as a page: a request goes in, the answer of a command comes out.

Read `attachments` (what a question says in place of a path), `questions` (a request's body becomes
keywords of the library, and the schema of it), `answering` (one question, in a worker), `pool`
(workers that can be ended, the queue, the deadline), `kept` (answers, by question), `guard` (who
may ask, and how much), then `app`, the routes, and `page`, where a question is put together.
"""

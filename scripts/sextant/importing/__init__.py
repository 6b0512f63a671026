"""What others measured becomes cells here.

In goes a published data set, or a folder or tar of cells; out come cells of `sextant.cells`.
`llm_pilot` (with `llm_pilot_requests`) imports LLM-Pilot's characterization. `merge` takes cells of
other clusters over: `found` reads them, `decisions` says what each is to the experiment here, and
`snakemake_metadata` has Snakemake record those that were copied.
"""

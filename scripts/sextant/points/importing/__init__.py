"""What others measured becomes a characterization, or cells, here.

In goes a published data set, or a folder or tar of cells. `inferencex` and `mlenergy` (with
`published`) make folders of points; `llm_pilot` (with `llm_pilot_requests`) makes cells of
LLM-Pilot's requests. `merge` takes cells of other clusters over: `found` reads them, `decisions`
says what each is to the experiment here, and `snakemake_metadata` has Snakemake record those that
were copied.
"""

"""One kit for pages and figures: numbers in words, sections, charts, templates."""

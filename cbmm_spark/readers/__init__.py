"""One module a format of evaluation results: what a file holds becomes the rows that ingest judges.

- In: Files, folders, patterns, tables of a catalog.
- Out: Frames of one shape (`readers/base`): model, benchmark, item, attempt, score, date, where it stood.
- May import: errors, config, spark, tables.
"""

"""Taking responses in: where the rules of `responses` meet Spark, and the commits, numbers, quarantine, report.

- In: Frames of the readers.
- Out: Rows of `responses`, `quarantine`, `models`, `items`, `ingests`.
- May import: errors, config, spark, tables, readers, responses.
"""

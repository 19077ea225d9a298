"""Taking responses in: rules, duplicates, corrections, quarantine, numbers of models and items.

- In: Frames of the readers.
- Out: Rows of `responses`, `quarantine`, `models`, `items`, `ingests`.
- May import: errors, config, spark, tables, readers.
"""

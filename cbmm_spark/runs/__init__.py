"""Runs: claiming the right to write, the gates before publishing, and publishing.

- In: Figures of a fit and the runs before it.
- Out: Rows of `runs`, and the tables `latest_*`.
- May import: errors, faultpoints, config, spark, tables.
"""

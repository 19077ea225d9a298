"""Copies, old runs, small files, and what `status` tells.

- In: The tables of a warehouse.
- Out: Fewer files, copies, a report.
- May import: errors, config, spark, console, tables, runs.
"""

"""Responses as blocks of bits or counts (tiles), made anew only where something changed.

- In: Changes of `responses` since the last packing.
- Out: Rows of `response_blocks`.
- May import: errors, config, kernels, spark, tables.
"""

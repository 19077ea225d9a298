"""Fitted scales as rows of the published tables.

- In: A finished fit.
- Out: Rows of `abilities`, `item_parameters`, `run_scales`.
- May import: config, kernels, tables, runs, fit.
"""

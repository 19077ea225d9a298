"""Putting a run on the scale of an earlier one.

- In: Two runs that share items or models.
- Out: Slope and intercept with their errors.
- May import: errors, config, kernels, spark, tables, fit, results.
"""

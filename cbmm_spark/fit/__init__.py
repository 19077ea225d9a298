"""The fit on Spark: where kernels and tiles meet.

- In: Tiles and starting abilities.
- Out: Abilities and item tables of every scale, checkpoints, iterations.
- May import: errors, faultpoints, config, kernels, spark, console, tables, packing, runs.
"""

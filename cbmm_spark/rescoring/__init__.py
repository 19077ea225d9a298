"""One rescore from packed tiles to a published run; or abilities alone, with items as they were published.

- In: The tables of a warehouse.
- Out: A published run, or one that a gate held back.
- May import: errors, faultpoints, config, kernels, spark, console, tables, packing, runs, fit, results,
  linking.
"""

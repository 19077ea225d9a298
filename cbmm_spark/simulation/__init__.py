"""Simulated leaderboards with known truth, and how well a fit finds it.

- In: Numbers of models and items, a seed.
- Out: Arrays, or Parquet files of responses and truth.
- May import: errors, config; it needs no Spark.
"""

"""The mathematics on arrays: NumPy and SciPy only, no Spark, no Arrow.

Throughout, the temperature sigma is folded into the item parameters (a/sigma, b/sigma) before a kernel is called,
so that kernels work with x = a * theta + b and P = 1 / (1 + exp(-x)).

- In: Arrays.
- Out: Arrays.
- May import: nothing of ours, no Spark, no Arrow.
"""

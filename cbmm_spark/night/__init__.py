"""A whole night as one command: which sources changed, ingest, pack, rescore, upkeep.

- In: `[nightly]` of the configuration.
- Out: One report of all steps.
- May import: all rooms from errors to rescoring.
"""

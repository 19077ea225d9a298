"""The configuration: every key with its type, default and check, and how a file and `--set` are laid over it.

- In: A TOML file and overrides.
- Out: A `Config`.
- May import: errors.
"""

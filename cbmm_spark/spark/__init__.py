"""Starting Spark with Delta, checking the machine, and settings that hold for a block of code.

- In: The `[spark]` section.
- Out: A session.
- May import: errors, config.
"""

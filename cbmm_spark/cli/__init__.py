"""The commands: arguments in, exit code out. No job is done here.

- In: The command line.
- Out: Calls of the jobs in the rooms below.
- May import: every room.
"""

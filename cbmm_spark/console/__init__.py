"""What a person or a program reads on the terminal: progress, tables of text, events as JSON.

- In: What jobs tell.
- Out: Lines on standard output and error.
- May import: errors, config.
"""

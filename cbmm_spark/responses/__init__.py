"""What a response may be: rules, duplicates, and the arrays that stand for many responses. No Spark here.

- In: `readers.rows.Rows`, as any reader gives them.
- Out: Judged rows, encoded rows, what becomes of each key beside the stored one.
- May import: errors, config, readers.rows.
"""

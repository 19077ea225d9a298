"""Many past days in the same passes over the tiles: `backfill`.

- In: Dates and the tables of a warehouse.
- Out: A run for each date.
- May import: all rooms from errors to linking.
"""

"""The output of a share group: rows in a Delta table, exactly once, and dead letters."""

"""What a share group writes: output rows into a Delta table, exactly once, and dead letters."""

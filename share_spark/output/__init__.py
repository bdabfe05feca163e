"""What leaves a share group exactly once: output rows into a Delta table, and dead letters."""

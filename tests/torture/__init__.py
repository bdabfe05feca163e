"""One Delta table that everybody writes: our commits beside Spark, delta-rs, clean-up and writers that overwrite.

A seed is a random table and a random sequence of steps. A model has the rows that have to be in the table; Spark,
delta-rs and our own reader have to find exactly these. ``make torture`` plays many seeds, ``make test`` a few.
"""

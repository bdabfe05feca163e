"""The history of records, and the check that a state log is self-consistent. Reads only."""

"""What happened: the history of records, and whether a state log is self-consistent. Reads only."""

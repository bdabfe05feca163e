"""Kill tests: a share group as a process of its own, killed or stopped at a named point, started again, and judged from
outside by its tables and by a file in which its handler notes every call."""

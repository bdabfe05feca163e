"""The crash comparison: the same records, service and kills for several systems, and one judge (docs/scoreboard.md)."""

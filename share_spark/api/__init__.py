"""The public API: ``ShareGroup``, the running query, the checkpoint, and the wiring of the parts."""

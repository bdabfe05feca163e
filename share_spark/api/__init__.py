"""The public face: ``ShareGroup``, the running query, the checkpoint, and how the parts are put together."""

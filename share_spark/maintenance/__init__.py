"""Work beside the micro-batches: compaction, retention, heartbeats, idle groups, the status table's refresh."""

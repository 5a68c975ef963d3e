"""Writing changes to the target: batches, tombstones, the applier."""

"""Spark: how it is started, kept and ended, and how jobs are run on it. What a task does is its own room's affair."""

"""The cut-over: what holds it back (reasons, blockers), how it is done (attempt), how its result is told (identity)."""

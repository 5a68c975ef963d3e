"""The switch: what holds it back (reasons, blockers), how it is done (swap), how its result is told (identity)."""

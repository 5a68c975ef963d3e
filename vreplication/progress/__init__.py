"""How far a workflow is: estimates for those who do the work, snapshots for those who watch."""

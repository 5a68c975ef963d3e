"""Copies or refreshes the rows of one time interval of a table, on the same server or another: see docs/backfill.md."""

"""Measurements: `make bench`. What each figure means stands in README.md beside this file."""

"""What happens to changes between the log and the target: held until their outcome is known, counted, timed."""

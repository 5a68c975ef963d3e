"""Verification: source and target are compared row by row, on Spark, while both are written to.

ranges.py     the key space cut into spans
scan.py       one span compared: checksums, then buckets, then single rows (runs on Spark's workers)
disorder.py   the same where the two sides sort the key differently: buckets over the whole table
spark_job.py  so many spans at a time as the limits say
rounds.py     keys that differed, examined again in windows between two markers
verify.py     all of it, with repairs; hot.py: what is left for the cut-over's lock
"""

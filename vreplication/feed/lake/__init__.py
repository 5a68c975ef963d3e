"""The lake: a feed's topic as Parquet files in a directory, whose readers see whole transactions of the source only."""

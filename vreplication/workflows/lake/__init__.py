"""A lake of a feed's topic as something to be asked for: what `lake` and `lake-compact` take. Done in feed/lake."""

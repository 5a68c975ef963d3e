"""The consumer: writes a feed's topic back into a database."""

from vreplication.feed.consume.run import consume

__all__ = ["consume"]

"""A change feed: rows and DDL of a binary log as messages in Kafka, and back."""

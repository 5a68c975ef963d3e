"""The command line: parse, call, show. Decisions are made below."""

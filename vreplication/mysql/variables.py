"""Session variables that every session of ours sets, as assignments.

What must stay true: whatever the server's own values, our statements do the same; what decides which value an
expression gives is left as the server's own sessions have it.
"""

BOTH = (
    "autocommit=1",  # MySQL's greeting says that it is on, also where the server's own sessions have it off
    "completion_type='NO_CHAIN'",  # CHAIN would begin a transaction behind each COMMIT, RELEASE end the connection
    "sql_select_limit=18446744073709551615",
    "sql_safe_updates=0",
    "sql_auto_is_null=0",
    "sql_big_selects=1",
    "sql_notes=1",  # notes name text that loses its end
    "sql_quote_show_create=1",
    "unique_checks=1",
    "foreign_key_checks=1",
    "lc_time_names=DEFAULT",
    "default_week_format=DEFAULT",
    "div_precision_increment=DEFAULT",
)
"""Session variables that change what our statements do, on either server. DEFAULT: what the server's own sessions have,
for generated columns are computed by them."""
MARIADB = (
    "max_statement_time=0",
    "tx_read_only=0",
    "check_constraint_checks=1",
    "sql_if_exists=0",
    # A server that takes no ALTER that copies is one that needs us: ours is of an empty table.
    "alter_algorithm='DEFAULT'",
    # On by default since 11.6, also under READ COMMITTED: INSERT … SELECT fails as soon as it meets a row that
    # catch-up has written since the statement began.
    "innodb_snapshot_isolation=0",
    # INSERT IGNORE warns of each row that it leaves out, and the warnings are counted (rowcopy/warned.py).
    "note_verbosity='basic'",
    "old_mode=TRIM(BOTH ',' FROM REPLACE(CONCAT(',',@@old_mode,','),',NO_DUP_KEY_WARNINGS_WITH_IGNORE,',','))",
)
MYSQL = (
    "max_execution_time=0",
    "transaction_read_only=0",
    "show_create_table_verbosity=0",
    # No limit: beyond it a statement of many keys reads, and locks, the whole table, with a warning.
    "range_optimizer_max_mem_size=0",
    # The key that a server gives a table without one: hidden from us it would be numbered anew.
    "show_gipk_in_create_table_and_information_schema=1",
)

"""Options that other tools have for what is called otherwise here: what to take in their place.

What must stay true: no name that one of our commands has; docs/from-gh-ost.md has the rest.
"""

from __future__ import annotations

from vreplication.cli.say import PROGRAM

_SERVER = "Give the server by --source mysql://user@host:port/database, the password by VREPLICATION_PASSWORD."
_WAIT = "Take --cutover manual, and `vreplication release ID` when it may switch."
_HOLD = "Use `vreplication pause ID` and `vreplication resume ID`."
_ROWS = "Take --chunk-rows N, or --chunk-millis MS."
_LAG = "Take --lag-replicas HOST:PORT,…."
_FOREIGN = "Take --foreign-keys rebuild."
_TRIGGERS = "Take --triggers preserve."
_TOLD = "Take --webhook URL, or read --json."
_CURES = {
    "--execute": "Leave it out: the command runs, and `vreplication plan` before it is the dry run.",
    "--dry-run": "Put plan before the command, `vreplication plan online-ddl …`: it touches nothing.",
    **dict.fromkeys(("--host", "--port", "--user", "--password", "--database", "--ask-pass"), _SERVER),
    **dict.fromkeys(("--postpone-cut-over-flag-file", "--postpone-completion", "--no-swap-tables"), _WAIT),
    **dict.fromkeys(("--throttle-flag-file", "--throttle-additional-flag-file", "--pause-file"), _HOLD),
    "--panic-flag-file": "`vreplication cancel ID` ends it; Ctrl-C stops it, and it can be resumed.",
    "--chunk-size": _ROWS,
    "--chunk-time": "Take --chunk-millis MS.",
    "--max-lag-millis": "Take --max-lag SECONDS.",
    **dict.fromkeys(("--throttle-control-replicas", "--check-slave-lag", "--check-replica-lag"), _LAG),
    **dict.fromkeys(("--alter-foreign-keys-method", "--discard-foreign-keys", "--skip-foreign-key-checks"), _FOREIGN),
    **dict.fromkeys(("--preserve-triggers", "--include-triggers"), _TRIGGERS),
    "--ok-to-drop-table": "Take --retired drop.",
    "--no-drop-old-table": "Leave it out: the original is kept.",
    "--allow-nullable-unique-key": "Take --allow-nullable-key.",
    **dict.fromkeys(("--hooks-path", "--plugin"), _TOLD),
    "--serve-socket-file": "`vreplication status`, `tune`, `pause` and `release` work from anywhere.",
    "--allow-on-master": "Leave it out: it runs against the primary.",
    "--test-on-replica": "There is none: every row is verified before the cut-over, which --cutover manual holds.",
}


def cure(option: str, command: str) -> str | None:
    """A sentence for who knows it from another tool; None: it is of none, or not meant for this command.

    command: all words of it, the program's name among them.
    """
    is_meant = command.split()[-1:] in (["online-ddl"], ["move-tables"], [PROGRAM])
    return _CURES.get(option.partition("=")[0]) if is_meant else None

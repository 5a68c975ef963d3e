"""The log file of this run, beside the replicating process's own, under the user's state folder.

What must stay true: every record passes `mask`, tracebacks included; a folder that cannot be written to costs the log,
never the work.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TextIO

from vreplication.engine.child import log_path
from vreplication.masking import mask


class _Masked(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


def start(name: str = "vreplication") -> Path | None:
    """Log to the file of this workflow from now on; None when no file can be written."""
    try:
        handler = logging.FileHandler(log_path(name, "cli"), encoding="utf-8")
    except (OSError, RuntimeError):
        return None
    handler.setFormatter(_Masked("%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"))
    root = logging.getLogger()
    stop()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("vreplication").setLevel(logging.INFO)
    return Path(handler.baseFilename)


def start_on(stream: TextIO) -> None:
    """Log to a stream that leads to a file already."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Masked("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger("vreplication").setLevel(logging.INFO)


def current() -> Path | None:
    """Where the log is, when there is one."""
    return next((Path(handler.baseFilename) for handler in _ours()), None)


def stop() -> None:
    """Close the log."""
    for handler in _ours():
        logging.getLogger().removeHandler(handler)
        handler.close()


def _ours() -> list[logging.FileHandler]:
    handlers = logging.getLogger().handlers
    return [h for h in handlers if isinstance(h, logging.FileHandler) and isinstance(h.formatter, _Masked)]

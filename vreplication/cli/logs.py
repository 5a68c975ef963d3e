"""The log: the file of this run, beside the replicating process's own, under the user's state folder; and standard
error, where JSON lines are asked for: an object a line, and nothing else there.

What must stay true: every record passes `mask`, tracebacks included; a folder that cannot be written to costs the log,
never the work; of JSON lines each is one, whatever is in it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from vreplication import about
from vreplication.cli import say
from vreplication.cli.streams import children_to
from vreplication.engine import child
from vreplication.engine.child import LOG_FORMAT, log_path
from vreplication.errors import Refused
from vreplication.masking import mask, masked

TEXT, JSON = "text", "json"
_FORMAT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
_ours_log = logging.getLogger("vreplication")
_before: Callable[[threading.ExceptHookArgs], object] | None = None


class _Masked(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


class _Json(_Masked):
    """time, level, workflow, phase, message, logger, process, and `error`, a traceback, where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        workflow, phase = about.now()
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "workflow": workflow,
            "phase": phase,
            "message": record.getMessage(),
            "logger": record.name,
            "process": record.process,
        }
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(masked(found), ensure_ascii=False, default=str)


class _OnStandardError(logging.Handler):
    """Where that leads now: while children write elsewhere it is another stream (streams.py)."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # One write a line: catch-up writes to the same place.
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            # Nobody reads it any more. What logging would say of that is no JSON.
            pass


def choose(name: str) -> None:
    """text or json, for all of this process and those that it starts. Raises Refused."""
    if name not in (TEXT, JSON):
        raise Refused(f"--log-format {name!r} is no format of the log.", cure="Use text or json.")
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _OnStandardError)]:
        root.removeHandler(handler)
    # Python itself would write its warnings to standard error, as text between the objects.
    logging.captureWarnings(name == JSON)
    say.log_instead(_ours_log if name == JSON else None)
    child.write_json_to(_descriptor if name == JSON else None)
    if name == JSON:
        handler = _OnStandardError()
        handler.setFormatter(_Json())
        root.addHandler(handler)
        _set_levels()
    _take_threads(is_ours=name == JSON)


def _take_threads(*, is_ours: bool) -> None:
    """Or give back to whom they were."""
    global _before
    if is_ours and _before is None:
        _before, threading.excepthook = threading.excepthook, _in_thread
    elif not is_ours and _before is not None:
        threading.excepthook, _before = _before, None


def is_json() -> bool:
    return any(isinstance(handler, _OnStandardError) for handler in logging.getLogger().handlers)


def _descriptor() -> int | None:
    """None where standard error is none of the process (under a test)."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        found = (args.exc_type, args.exc_value, args.exc_traceback)
        _ours_log.error("a thread ended by an unexpected error", exc_info=found)


def start(name: str = "vreplication") -> Path | None:
    """Log to the file of this workflow from now on; None when no file can be written."""
    about.enter(name)
    try:
        handler = logging.FileHandler(log_path(name, "cli"), encoding="utf-8")
    # A home that cannot be written to, or that cannot be found, costs the log alone.
    except (OSError, RuntimeError):
        return None
    handler.setFormatter(_Json() if is_json() else _Masked(_FORMAT))
    stop()
    logging.getLogger().addHandler(handler)
    _set_levels()
    return Path(handler.baseFilename)


def start_on(stream: TextIO, workflow: str) -> None:
    """Log to a stream that leads to a file already, or to where its parent writes JSON."""
    about.enter(workflow)
    if os.environ.get(LOG_FORMAT) == JSON:
        choose(JSON)
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Masked("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    _ours_log.setLevel(logging.INFO)


def _set_levels() -> None:
    logging.getLogger().setLevel(logging.WARNING)
    _ours_log.setLevel(logging.INFO)


def current() -> Path | None:
    """Where the log is, when there is one."""
    return next((Path(handler.baseFilename) for handler in _ours()), None)


def of_children() -> Path | None:
    """Where what they write goes. None: to where we write, which nothing may come between that is no JSON."""
    path = current()
    if not is_json():
        return path
    return path.with_suffix(".children.log") if path else Path(os.devnull)


def quiet_libraries() -> AbstractContextManager[None]:
    """While this lasts, what C libraries write to standard error by themselves comes between no JSON lines."""
    return children_to(of_children()) if is_json() else nullcontext()


def stop() -> None:
    """Close the log."""
    for handler in _ours():
        logging.getLogger().removeHandler(handler)
        handler.close()


def _ours() -> list[logging.FileHandler]:
    handlers = logging.getLogger().handlers
    return [h for h in handlers if isinstance(h, logging.FileHandler) and isinstance(h.formatter, _Masked)]

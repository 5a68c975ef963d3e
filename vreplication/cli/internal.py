"""What we start ourselves: the replicating process.

What must stay true: the URL is read from standard input, and the end of standard input ends the process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from vreplication import masking
from vreplication.cli import logs
from vreplication.errors import Interrupted, VReplicationError
from vreplication.workflows.child import from_line
from vreplication.workflows.replicate import replicate

log = logging.getLogger("vreplication.replicate")


def run_replicate(workflow: str) -> int:
    """Catch-up of one workflow; returns the exit code."""
    line = sys.stdin.buffer.readline()
    if not line:
        # Loaded ahead, and not needed.
        return 0
    url = from_line(line)
    masking.remember(*url.secrets)
    logs.start_on(sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_until_end_of_input, args=(stop,), daemon=True).start()
    log.info("catch-up of workflow %s begins", workflow)
    try:
        replicate(url, workflow, stop)
    except Interrupted:
        return Interrupted.exit_code
    except VReplicationError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception:  # a fault of ours: the log is the only place where anybody would look for it
        log.exception("catch-up ended by an unexpected error")
        return 1
    log.info("catch-up of workflow %s ends", workflow)
    return 0


def _until_end_of_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()

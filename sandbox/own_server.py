"""`make server`: a private server to try things on, with an empty database `shop` and our user of sql/grants/.

What must stay true: it listens on this machine alone; `make server-stop` ends it by its process id and leaves nothing;
what a shell reads (`.sandbox/server/env`) is there only when the server answers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sandbox import binaries, servers
from sandbox.databases import Database, create_database
from sandbox.install import ROOT
from sandbox.processes import is_there

SCHEMA = "shop"
_FLAVOR = "VREPLICATION_DEMO_FLAVOR"
_START_SECONDS = 120


def folder() -> Path:
    return Path(os.environ.get("VREPLICATION_SERVER_FOLDER") or ROOT / ".sandbox" / "server")


def flavor() -> str:
    return os.environ.get(_FLAVOR) or "mariadb"


def main(words: Sequence[str]) -> int:
    """start, stop, or serve (the process in the background)."""
    return {"start": start, "stop": stop, "serve": serve}[words[0] if words else "start"]()


def start() -> int:
    """Start it unless one is there; return when it answers."""
    place = folder()
    if flavor() not in binaries.FLAVORS:
        print(f"server: {_FLAVOR} must be one of {', '.join(binaries.FLAVORS)}, not {flavor()!r}.", file=sys.stderr)
        return 2
    if not _living():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        process = _launch(place)
        deadline = time.monotonic() + _START_SECONDS
        while not (place / "env").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                print(f"server: {(place / 'log').read_text().strip()[-2000:]}", file=sys.stderr)
                return 2
            time.sleep(0.1)
    print(f"The server is up, with an empty database {SCHEMA}. In each shell that is to use it:\n\n. {place / 'env'}")
    return 0


def _launch(place: Path) -> subprocess.Popen[bytes]:
    with (place / "log").open("wb") as out:
        command = [sys.executable, "-m", "sandbox.own_server", "serve"]
        # It outlives make, and Ctrl-C in make's terminal.
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    (place / "keeper").write_text(str(process.pid))
    return process


def stop() -> int:
    """End it and remove all of it."""
    if pid := _living():
        os.kill(pid, signal.SIGTERM)
        while _living():
            time.sleep(0.1)
    shutil.rmtree(folder(), ignore_errors=True)
    return 0


def _living() -> int | None:
    """Process numbers are used again: it must also be our command."""
    try:
        pid = int((folder() / "keeper").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if b"sandbox.own_server" in words and is_there(pid) else None


def serve() -> int:
    """Until SIGTERM."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    try:
        server = servers.start(flavor(), folder() / "data")
    except (servers.StartFailed, binaries.ServerMissing) as error:
        print(error)
        return 2
    try:
        _tell(create_database(server, SCHEMA))
        over.wait()
    finally:
        server.stop()
    return 0


def _tell(made: Database) -> None:
    """The password is in files that nobody else reads."""
    place, server = folder(), made.server
    login = f"[client]\nhost={server.host}\nport={server.port}\nuser={server.user}\npassword={server.password}\n"
    _write(place / "client.cnf", login)
    client = binaries.client_command(server.flavor, server.flavor)
    words = shlex.join([*client, f"--defaults-file={place / 'client.cnf'}", "--table", made.name])
    _write(place / "bin" / "sql", f'#!/bin/sh\nexec {words} "$@"\n', mode=0o700)
    lines = {
        "PATH": f"{place / 'bin'}:{ROOT / '.venv/bin'}:$PATH",
        "VREPLICATION_SOURCE": str(made.user_url),
        "VREPLICATION_PASSWORD": made.password,
    }
    _write(place / "env.new", "".join(f'export {name}="{value}"\n' for name, value in lines.items()))
    # Whole when it has its name: `start` waits for this file, and a shell reads it.
    (place / "env.new").rename(place / "env")


def _write(path: Path, text: str, *, mode: int = 0o600) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch(mode)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

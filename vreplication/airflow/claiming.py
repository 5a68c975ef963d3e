"""One look at every source: files go in, what is due is claimed and comes out as conf of runs of its kind's DAG.

What must stay true: importing this imports nothing of Airflow; a source or a file that fails keeps no other one
waiting, and is said; a migration whose file was changed since it went in is not started.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any

from vreplication.airflow import connections
from vreplication.airflow.migration_files import Files, Wanted
from vreplication.airflow.request import CLAIMANT, DEFAULT_CONNECTION
from vreplication.errors import Refused, VReplicationError
from vreplication.mysql.server import identity_of
from vreplication.mysql.session import Session, connect
from vreplication.mysql.url import SourceUrl
from vreplication.scheduler import due, queueing
from vreplication.state import queue, workflows
from vreplication.state.queue import Entry
from vreplication.workflows.registry import KINDS, connection_param

log = logging.getLogger(__name__)

_READ_SECONDS = 60.0


def put_in(session: Session, wanted: Iterable[Wanted], default_schema: str, by: str) -> dict[str, str]:
    """Those not submitted before, each once. Returns what is wrong with the others: workflow → sentence."""
    problems: dict[str, str] = {}
    known = queue.workflows_known(session)
    for one in wanted:
        entry = one.entry(default_schema)
        before = queue.find(session, entry.workflow)
        if before is not None and before.state == queue.QUEUED and _asked(before) != _asked(entry):
            problems[entry.workflow] = _changed(entry, one.file)
        # An entry that has ended or was removed is not put in again by a file that is still there: its id is taken for
        # good.
        elif before is None and entry.workflow not in known:
            problems |= _submit(session, entry, one, by)
        elif _is_about_another(session, before, entry):
            problems[entry.workflow] = _taken(entry, one.file)
    return problems


def _is_about_another(session: Session, before: Entry | None, entry: Entry) -> bool:
    """The id was used for something else: in the queue, or by hand. The schema may be the connection's of now."""
    kind, _, *asked = entry.asked
    if before is not None:
        return before.kind != kind or [*before.asked[2:]] != asked
    row = workflows.load(session, entry.workflow)
    _, _, *of_row = queue.about(row.kind, "", row.source_table, row.spec.get("alter"))
    return row.kind != kind or (kind == queue.ONLINE_DDL and of_row != asked)


def _taken(entry: Entry, file: str) -> str:
    """It would never be started, and nothing would say so."""
    return f"{file}: workflow {entry.workflow} was there before, for another table or ALTER. Give it a new id."


def _submit(session: Session, entry: Entry, one: Wanted, by: str) -> dict[str, str]:
    try:
        queueing.submit(session, entry, f"{by} ({one.file})")
    except Refused as error:
        return {entry.workflow: f"{one.file}: {error}"}
    log.info("%s: workflow %s is in the queue of %s", one.file, entry.workflow, one.conn_id)
    return {}


def _changed(entry: Entry, file: str) -> str:
    """A file that was changed after it was read: what waits is not what has been reviewed, so it is not started."""
    cure = f"Remove it (`vreplication queue --remove {entry.workflow}`) and give it a new id."
    return f"{file}: workflow {entry.workflow} is in the queue with other values than the file has. {cure}"


def _asked(entry: Entry) -> tuple[object, ...]:
    return entry.schema, entry.table, entry.spec, entry.not_before, entry.after, entry.priority


def conf_of(entry: Entry, conn_id: str, claimant: str = "") -> dict[str, Any]:
    """The run's conf. conn_id: of the server in whose queue the entry is."""
    # The kind is which DAG is triggered, and no param of it.
    asked = {name: value for name, value in entry.spec.items() if name != queue.KIND}
    claim = {CLAIMANT: claimant} if claimant else {}
    return {connection_param(KINDS[entry.kind].home): conn_id, **asked, "workflow": entry.workflow, **claim}


def look_after(
    sources: Iterable[str],
    files: Files,
    *,
    concurrency: int,
    by: str,
    claimant: str = "",
    look_up: Callable[[Entry], str],
    conn_of_run: Callable[[Entry], str | None] = lambda _: None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Claim what is due on every source: arguments of TriggerDagRunOperator, and what went wrong.

    claimant: which Airflow this is, where several may look at one server. conn_of_run: for which connection the run of
    an entry's id was made; None: that is not known.
    """
    runs: list[dict[str, Any]] = []
    problems = list(files.problems)
    named = sorted(sources)
    for conn_id, url, problem in map(find_source, named):
        if url is None:
            problems += [problem] if problem else []
            continue
        try:
            asked = functools.partial(_look_up, conn_id, url, look_up, conn_of_run)
            claim = functools.partial(
                queueing.claim, concurrency=concurrency, by=f"{by} on {conn_id}", claimant=claimant, look_up=asked
            )
            found, wrong = _look_after_one(conn_id, url, frozenset(named), files, by, claim)
        # Of this source alone: what the others have due is started all the same.
        except VReplicationError as error:
            found, wrong = [], [f"Connection {conn_id!r}: {error}"]
        runs += [
            {"trigger_dag_id": e.kind, "trigger_run_id": e.workflow, "conf": conf_of(e, conn_id, claimant)}
            for e in found
        ]
        problems += wrong
    return runs, problems


def _look_up(
    conn_id: str,
    url: SourceUrl,
    look_up: Callable[[Entry], str],
    conn_of_run: Callable[[Entry], str | None],
    entry: Entry,
) -> str:
    """An id is one workflow's on a server, and of all servers one run has it."""
    found = look_up(entry)
    # Two questions to Airflow, so the second is asked of a run that exists only.
    of_run = conn_of_run(entry) if found != due.ABSENT else None
    return due.ELSEWHERE if of_run and _is_elsewhere(of_run, conn_id, url) else found


def _is_elsewhere(other: str, conn_id: str, url: SourceUrl) -> bool:
    """Two connections may lead to one server."""
    if other == conn_id:
        return False
    _, found, _ = find_source(other)
    if found is None or (found.host, found.port, found.unix_socket) == (url.host, url.port, url.unix_socket):
        return found is None
    # By other names it may be this very server, which alone can tell; one that cannot be asked is not called another,
    # for a start that goes well would be told as failed.
    try:
        with connect(url, read_timeout=_READ_SECONDS) as here, connect(found, read_timeout=_READ_SECONDS) as there:
            return identity_of(here) != identity_of(there)
    except VReplicationError:
        return False


def standing(conn_ids: Iterable[str], concurrency: int) -> tuple[list[str], bool]:
    """What is due and has a place, although nothing was claimed; and whether anything is started and has not begun."""
    due_ones: set[str] = set()
    is_in_doubt = False
    for _, url, _ in map(find_source, conn_ids):
        # The claim before it has told of a source that cannot be asked.
        with contextlib.suppress(VReplicationError):
            found, doubt = standing_at(url, concurrency) if url else ([], False)
            due_ones |= set(found)
            is_in_doubt |= doubt
    return sorted(due_ones), is_in_doubt


def standing_at(url: SourceUrl, concurrency: int) -> tuple[list[str], bool]:
    """The same of one server."""
    with connect(url, read_timeout=_READ_SECONDS) as session:
        if not queue.is_there(session):
            return [], False
        scene = queueing.look(session)
    is_in_doubt = any(e.state == queue.STARTED and e.workflow not in scene.known for e in scene.entries)
    return [entry.workflow for entry in due.choose(scene, concurrency)], is_in_doubt


def find_source(conn_id: str) -> tuple[str, SourceUrl | None, str]:
    """A connection's URL or the problem with it. The default connection need not exist."""
    try:
        return conn_id, connections.source_url(conn_id), ""
    except Refused as error:
        return conn_id, None, "" if conn_id == DEFAULT_CONNECTION else str(error)


def _look_after_one(
    conn_id: str,
    url: SourceUrl,
    named: frozenset[str],
    files: Files,
    by: str,
    claim: Callable[..., list[Entry]],
) -> tuple[list[Entry], list[str]]:
    """claim: in the name of this connection, for two may lead to one server: each is told of its own claims."""
    with connect(url, read_timeout=_READ_SECONDS) as session:
        mine = [w for w in files.wanted if w.conn_id == conn_id]
        problems = put_in(session, mine, url.database, by)

        def may_start(entry: Entry) -> bool:
            """Another connection's only when nobody looks after that one."""
            is_ours = entry.conn_id in (None, conn_id) or entry.conn_id not in named
            return is_ours and entry.workflow not in problems

        return claim(session, may_start=may_start), list(problems.values())

"""The program: its commands, and how whatever ends one becomes a sentence and an exit code.

What must stay true: an error of ours is one sentence on standard error and its exit code, never a traceback; an
unexpected one says where the log is; no secret gets out either way.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from vreplication import __version__
from vreplication.cli import (
    backfill,
    blockers,
    changefeed,
    completion,
    doctor,
    elsewhere,
    hooks,
    housekeeping,
    lake,
    logs,
    metrics,
    move_tables,
    online_ddl,
    operate,
    outcome,
    revert,
    streams,
    submit,
)
from vreplication.cli.flags import Commands
from vreplication.cli.invocation import Invocation
from vreplication.cli.say import PROGRAM, error, json_line, say
from vreplication.cli.status import status
from vreplication.engine import webhooks
from vreplication.engine.child import LOG_FORMAT
from vreplication.errors import Interrupted, Refused, VReplicationError
from vreplication.masking import mask
from vreplication.planning.fields import plain

DEBUG = "VREPLICATION_DEBUG"
_LOG_FORMAT = "--log-format"
_OF_ALL = (_LOG_FORMAT, "--webhook", "--webhook-secret-file")
HELP = """
Change and move live MySQL and MariaDB tables without losing a write.

Every command takes the server from --source or VREPLICATION_SOURCE, and the password from VREPLICATION_PASSWORD or
--source-file; where tables move to another server, that one likewise from --target, VREPLICATION_TARGET,
VREPLICATION_TARGET_PASSWORD or --target-file.

Exit codes: 0 complete, 1 failed (the source table is untouched), 2 refused or bad input (nothing was touched), 3
cancelled, 130 interrupted.
"""

app = typer.Typer(
    name=PROGRAM, help=HELP, cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="markdown"
)
plans = typer.Typer(
    help="Say what a command would do, with every check's verdict; touches nothing.",
    cls=Commands,
    no_args_is_help=True,
)
submits = typer.Typer(help=submit.SUBMIT_HELP, cls=Commands, no_args_is_help=True)


def _version(context: typer.Context, is_asked: bool) -> None:
    # A shell that completes what comes behind it asks for no version.
    if is_asked and not context.resilient_parsing:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True, show_default=False)
    ] = False,
    _format: Annotated[
        str | None,
        typer.Option(
            _LOG_FORMAT,
            metavar="text|json",
            help=f"json: the log goes to standard error, an object a line. Or set {LOG_FORMAT}. [default: text]",
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option("--webhook", metavar="URL", help=f"Send each event there, signed. Or set {webhooks.URL}."),
    ] = None,
    webhook_secret_file: Annotated[
        Path | None,
        typer.Option(
            "--webhook-secret-file",
            metavar="FILE",
            help=f"What they are signed with. Or set {webhooks.SECRET} or {webhooks.SECRET_FILE}.",
        ),
    ] = None,
) -> None:
    """What is of every command. Catch-up has been asked for by a command that has looked at it."""
    if context.invoked_subcommand == "replicate":
        return
    metrics.check_listen()
    hooks.configure(context.invoked_subcommand, webhook, webhook_secret_file)


def _replicate(workflow: str) -> None:
    """Catch-up of one workflow, started by the driver with the URL on standard input."""
    from vreplication.cli.internal import run_replicate

    raise typer.Exit(run_replicate(workflow))


def _spark_archive() -> None:
    """Archive the classes of Spark's JVM beside this installation: every later start takes half the time."""
    from vreplication.spark.start import write_archive

    with streams.children_to(logs.start()):
        written = write_archive()
    say(f"written: {written}")


app.command("online-ddl", help=online_ddl.RUN_HELP)(online_ddl.command(online_ddl.run))
plans.command("online-ddl", help=online_ddl.PLAN_HELP)(online_ddl.command(online_ddl.plan))
app.command("move-tables", help=move_tables.RUN_HELP)(move_tables.command(move_tables.run))
plans.command("move-tables", help=move_tables.PLAN_HELP)(move_tables.command(move_tables.plan))
app.command("changefeed", help=changefeed.RUN_HELP)(changefeed.command(changefeed.run))
plans.command("changefeed", help=changefeed.PLAN_HELP)(changefeed.command(changefeed.plan))
app.command("scale", help=changefeed.SCALE_HELP)(changefeed.scale)
app.command("feed-check", help=changefeed.CHECK_HELP)(changefeed.feed_check)
app.command("consume", help=changefeed.CONSUME_HELP)(changefeed.consume)
app.command("doctor", help=doctor.HELP)(doctor.doctor)
app.command("metrics", help=metrics.HELP)(metrics.metrics)
app.command("lake", help=lake.HELP)(lake.lake)
app.command("lake-read", help=lake.READ_HELP)(lake.lake_read)
app.command("lake-compact", help=lake.COMPACT_HELP)(lake.lake_compact)
app.add_typer(plans, name="plan")
app.command(help=backfill.HELP)(backfill.backfill)
app.command()(status)
app.command(help=blockers.HELP)(blockers.blockers)
for _act in operate.COMMANDS:
    app.command()(_act)
app.command()(revert.revert)
submits.command("online-ddl", help=submit.ONLINE_DDL_HELP)(submit.online_ddl)
submits.command("move-tables", help=submit.MOVE_HELP)(submit.move_tables)
app.add_typer(submits, name="submit")
app.command("queue", help=submit.QUEUE_HELP)(submit.queue)
app.command("housekeeping", help=housekeeping.HELP)(housekeeping.housekeeping)
app.command("completion", help=completion.HELP)(completion.completion)
app.command("spark-archive")(_spark_archive)
app.command("replicate", hidden=True)(_replicate)


def run(args: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    # Before the command is read: what is wrong with its options is told as JSON, too.
    is_json = "--json" in args
    completion.prepare()
    try:
        _check_text(args)
        logs.choose(_log_format(args))
        code = app(_whole(args), prog_name=PROGRAM, standalone_mode=False, obj=Invocation(args=tuple(args)))
    except VReplicationError as failure:
        return outcome.report(failure, is_json=is_json)
    except TyperException as failure:
        return _usage(failure, is_json=is_json)
    except (KeyboardInterrupt, typer.Abort):
        return interrupted(args)
    except BrokenPipeError:
        return _closed_pipe()
    except Exception as failure:
        return _unexpected(failure, is_json=is_json)
    finally:
        # Behind whatever ended it: the events of a run that has failed are delivered as well.
        hooks.end()
    return code if isinstance(code, int) else 0


def _check_text(args: Sequence[str]) -> None:
    """Raises Refused where one has bytes that are no characters; it is not shown, for it may hold a password."""
    for number, word in enumerate(args, 1):
        # Python hands bytes that are no UTF-8 on as lone surrogates, which neither a server nor a log takes.
        if not word.isprintable() and any("\ud800" <= character <= "\udfff" for character in word):
            raise Refused(f"Argument {number} is no text in UTF-8.", cure="Type it again in a terminal of UTF-8.")


def _whole(args: Sequence[str]) -> list[str]:
    """`submit --table …` is `submit online-ddl --table …`; what is of every command may stand behind it, too."""
    args, of_all = _parted(args)
    is_short = len(args) > 1 and args[0] == "submit" and args[1].startswith("-") and args[1] != "--help"
    rest = ["submit", "online-ddl", *args[1:]] if is_short else args
    return [*of_all, *rest]


def _log_format(args: Sequence[str]) -> str:
    """Before the command is read: also what is wrong with that is told in it. The last one counts."""
    _, words = _parted(args)
    found = os.environ.get(LOG_FORMAT) or logs.TEXT
    for word, value in zip(words, [*words, ""][1:], strict=False):
        name, sign, given = word.partition("=")
        if name == _LOG_FORMAT:
            found = given if sign else value
    return found


def _parted(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of one command, and of all."""
    rest, of_all, left = list[str](), list[str](), list(args)
    while left and left[0] != "--":
        word = left.pop(0)
        name, sign, _ = word.partition("=")
        if name not in _OF_ALL:
            rest.append(word)
        else:
            of_all += [word] if sign or not left else [word, left.pop(0)]
    return [*rest, *left], of_all


def interrupted(args: Sequence[str]) -> int:
    """A signal came before or outside of the work; returns the exit code."""
    return outcome.report(Interrupted("Interrupted."), is_json="--json" in args)


def _usage(failure: TyperException, *, is_json: bool) -> int:
    """A wrong option or argument: a sentence. No command at all: the help has been printed, there is nothing to add."""
    text = plain(" ".join(failure.format_message().split()))
    if not text:
        return Refused.exit_code
    sentence = text if text[-1] in ".?" else f"{text}."
    context = getattr(failure, "ctx", None)
    asked = context.command_path if context is not None else PROGRAM
    name = str(getattr(failure, "option_name", None) or "")
    if of_theirs := elsewhere.cure(name, asked):
        # What looks alike among ours has nothing to do with it.
        return outcome.report(Refused(f"No such option: {name}.", cure=of_theirs), is_json=is_json)
    return outcome.report(Refused(sentence, cure=f"See `{asked} --help`."), is_json=is_json)


def _closed_pipe() -> int:
    """Whoever read our output has gone; what was under way has been stopped cleanly."""
    # Python writes out what is left when it ends, and would meet the closed pipe once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Interrupted.exit_code


def _unexpected(failure: Exception, *, is_json: bool) -> int:
    path = logs.current() or logs.start()
    logging.getLogger("vreplication").error("unexpected error", exc_info=failure)
    where = f"The log is {path}." if path else f"Set {DEBUG}=1 to see where."
    text = mask(f"Unexpected error: {type(failure).__name__}: {failure}. {where}")
    if is_json:
        json_line(outcome.error_fields(failure, text))
    error(text)
    if os.environ.get(DEBUG) == "1" and not logs.is_json():
        print(mask("".join(traceback.format_exception(failure))), file=sys.stderr)
    return 1

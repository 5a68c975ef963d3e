"""Options of a command, made from the fields of a kind's spec: their names, values, defaults and words are the spec's.

What must stay true: no default is decided here (an option that is not given is not passed on); what a value may be is
said by the spec, so that every face refuses it with the same sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo

from vreplication.cli.completion import of_words
from vreplication.planning.fields import AUTO, DEFAULT_WORDS, METAVAR, OPTION, SAID, own_fields

_METAVARS = {int: "N", float: "X", str: "TEXT"}


def with_options(
    act: Callable[..., None], model: type[BaseModel], *, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Callable[..., None]:
    """A command that takes the model's options, each by its field's name. act: called with the context and the rest.

    before, after: other parameters, name → annotation, that stand first and last; one that is called as a field is in
    its place. None of them has to be given, but an argument.
    """
    own, shared = ([name for name in part if name not in before] for part in own_fields(model))
    options = [option(name, model.model_fields[name]) for name in (*own, *shared)]
    return _command(act, [*_parameters(before), *options, *_parameters(after)])


def with_parameters(parameters: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with these, name → annotation, that is called and described as what carries it out."""
    return lambda act: _command(act, _parameters(parameters))


def _command(act: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    found = [context, *parameters]

    def command(context: typer.Context, **values: Any) -> None:
        act(context, **values)

    # Typer reads a command's parameters and its help from these.
    command.__name__, command.__doc__ = act.__name__, act.__doc__
    command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
    return command


def _parameters(annotations: Mapping[str, Any]) -> list[inspect.Parameter]:
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_unless_given(each), annotation=each)
        for name, each in annotations.items()
    ]


def _unless_given(annotation: Any) -> Any:
    kind, info = get_args(annotation)[:2]
    # An argument has to be given: `empty` says so.
    return inspect.Parameter.empty if isinstance(info, ArgumentInfo) else False if kind is bool else None


def given(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model was given, for `make_request`; None for the rest."""
    return {name: _value(model.model_fields[name], values[name]) for name in model.model_fields if name in values}


def _value(field: FieldInfo, value: Any) -> Any:
    if isinstance(value, list):
        # Typer gives an empty list for an option that is not there, which is not "asked for none".
        return tuple(value) or None
    if _extra(field).get(AUTO) and isinstance(value, str) and value.strip().lower() == "auto":
        return None
    # A flag that is not there says nothing.
    return None if value is False and field.default is False else value


def option(name: str, field: FieldInfo) -> inspect.Parameter:
    """As typer reads it from a function."""
    extra, kind, flag = _extra(field), _kind(field), _flag(name, field)
    words = f"{extra.get(SAID) or field.description}{_default(field)}"
    if kind is bool:
        flags = f"{flag}/--no-{flag[2:]}" if field.default else flag
        info = typer.Option(flags, help=words, show_default=False)
        if not field.default:
            return inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]
            )
    else:
        info = typer.Option(flag, metavar=_metavar(field, kind), help=words, autocompletion=of_words(_words(field)))
    shape: Any = Annotated[kind | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=shape)


def anew(model: type[BaseModel], name: str, words: str) -> Any:
    """The annotation of a field's option where it is changed under way: as text, for `off` takes it back."""
    field = model.model_fields[name]
    metavar = f"{_metavar(field, _kind(field))}|off"
    return Annotated[str | None, typer.Option(_flag(name, field), metavar=metavar, help=words)]


def _flag(name: str, field: FieldInfo) -> str:
    return str(_extra(field).get(OPTION) or f"--{name.replace('_', '-')}")


def _extra(field: FieldInfo) -> Mapping[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _kind(field: FieldInfo) -> Any:
    """What typer is to read: text where the spec takes one of several words, or `auto` for a number."""
    parts = [part for part in get_args(field.annotation) or (field.annotation,) if part is not type(None)]
    if get_origin(field.annotation) is tuple:
        return list[str]
    if get_origin(field.annotation) is Literal or _extra(field).get(AUTO):
        return str
    return parts[0]


def _words(field: FieldInfo) -> tuple[str, ...]:
    """All that it may be, where they can be listed."""
    return tuple(map(str, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ()


def _metavar(field: FieldInfo, kind: Any) -> str:
    if said := _extra(field).get(METAVAR):
        return str(said)
    if words := _words(field):
        return "|".join(words)
    return "NAME" if kind == list[str] else _METAVARS[kind]


def default_words(field: FieldInfo) -> str:
    """What holds where nothing is given; '' where there is nothing to be said of it."""
    words = _extra(field).get(DEFAULT_WORDS)
    if words is not None or field.is_required() or field.default in (None, False, ()):
        return str(words or "")
    if field.default is True:
        return "yes"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _default(field: FieldInfo) -> str:
    """In the words of the help; its brackets would be markup."""
    words = default_words(field).replace("[", "\\[")
    return f" [default: {words}]" if words else ""

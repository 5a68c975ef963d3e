"""How a field of a request is asked for, whatever the kind, and what is said where its value is wrong.

What must stay true: faces read here how to ask, and make up no words of their own; every wrong value is one clear
sentence (`Refused`), whichever face it came through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError

from vreplication.errors import Refused

R = TypeVar("R", bound=BaseModel)
_WHOLE = "it has to be a whole number"
SECTION, OPTION, METAVAR, AUTO, DEFAULT_WORDS, SAID = "section", "option", "metavar", "auto", "default_words", "said"
"""What faces read of a field (`json_schema_extra`)."""


def ask(section: str, **more: Any) -> dict[str, Any]:
    """How a field is asked for. section: of a form: what, when, how, where or rare.

    Of the command line: option, where it is not called as the field; metavar; auto: the word for no number;
    default_words: where the default says too little; said: where the description is of a form. format: of the form.
    """
    return {SECTION: section, **more}


def own_fields(model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """Names of the fields that this kind alone has, and of those that it shares with all."""
    own = [name for name in model.model_fields if name in model.__annotations__]
    return own, [name for name in model.model_fields if name not in own]


def make_request(model: type[R], given: dict[str, Any]) -> R:
    """What a face was given, as a value that is checked; None means the default. Raises Refused with one sentence."""
    try:
        # Without those that are None: what a default is, the model alone decides.
        return model.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise Refused(said(error)) from None


# As Spark reads it: what it does not take it says when it starts, and by then a new table has been made.
_MANY = r"[1-9][0-9]*"
_MASTER = re.compile(
    rf"local(\[(\*|{_MANY})(\s*,\s*{_MANY})?\])?|local-cluster\[\s*{_MANY}(\s*,\s*{_MANY}){{2}}\s*\]"
    r"|(spark|k8s)://\S+|yarn"
)


def check_master(value: str) -> str:
    """Of Spark. Raises ValueError, in words for people."""
    if not _MASTER.fullmatch(value.strip()):
        raise ValueError(
            f"{value!r} is no master of Spark: local[*], spark://host:port, k8s://https://host:port or yarn"
        )
    return value.strip()


SparkMaster = Annotated[str, AfterValidator(check_master)]
"""A field that says where Spark runs."""

_WRONG = {
    "greater_than_equal": "it has to be at least {ge}",
    "greater_than": "it has to be more than {gt}",
    "less_than_equal": "it has to be at most {le}",
    "less_than": "it has to be less than {lt}",
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": "it has to be a number",
    "float_parsing": "it has to be a number",
    "finite_number": "it has to be a number",
    "bool_type": "it has to be true or false",
    "bool_parsing": "it has to be true or false",
    "string_type": "it has to be text",
    "string_too_short": "it is empty",
    "literal_error": "it has to be one of {expected}",
    "missing": "it is missing",
    "extra_forbidden": "there is no such option",
}


_ENGLISH = {
    r"Value error, ": "",
    r"Input should be a valid integer, .*": _WHOLE,
    r"Input should be a valid number, .*": "it has to be a number",
    r"Input should be a finite number": "it has to be a number",
    r"Input should be greater than or equal to (\S+)": r"it has to be at least \1",
    r"Input should be less than or equal to (\S+)": r"it has to be at most \1",
    r"Input should be greater than (\S+)": r"it has to be more than \1",
}


def plain(text: str) -> str:
    """What the command line's parser says, with pydantic's words in it, in ours."""
    for theirs, ours in _ENGLISH.items():
        text = re.sub(theirs, ours, text)
    return text


class Wrong(Protocol):
    """pydantic's error, and FastAPI's of a request."""

    def errors(self) -> Sequence[Any]: ...


def said(error: Wrong) -> str:
    """The first of what is wrong, as one sentence: the field, and what its value has to be."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "request"
    context = {name: f"{value:,}" if isinstance(value, int) else value for name, value in first.get("ctx", {}).items()}
    known = _WRONG.get(first["type"])
    words = known.format(**context) if known else str(first["msg"]).removeprefix("Value error, ")
    return f"{field}: {words}."

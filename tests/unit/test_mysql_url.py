"""What of a server's URL is refused rather than read as something else, and what is said of it."""

from __future__ import annotations

import pytest

from vreplication.errors import Refused
from vreplication.mysql.url import parse

LOGIN = "mysql://u:secret@h/shop"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mysql://u:half@secret@h/shop", "an @ in its user or its password. Write it as %40."),
        ("mysql://u@h:0/shop", "the port 0. A port is from 1 to 65,535."),
        ("mysql://u@h:70000/shop", "the port 70000"),
        ("mysql://u@h:-1/shop", "the port -1"),
        (f"{LOGIN}?ssl_ca=", "options without a value: ssl_ca."),
        (f"{LOGIN}?ssl_cert=/c&ssl_ca", "options without a value: ssl_ca."),
        (f"{LOGIN}?ssl_ca=/x&ssl_verify_cert=ture", "ssl_verify_cert=ture. Write ssl_verify_cert=true"),
        (f"{LOGIN}?ssl_disabled=2", "ssl_disabled=2."),
        (f"{LOGIN}?sll_ca=/x", "ssl_disabled, unix_socket."),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    """Each would connect elsewhere, go without TLS or a look at the certificate, or show a part of the password."""
    with pytest.raises(Refused) as told:
        parse(text)
    assert words in str(told.value)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("password", ["p?ssl_ca", "p?w&ssl_ca=", "p/w?x", "p%40w"])
def test_passwords_that_look_like_options(password: str) -> None:
    found = parse(f"mysql://u:{password}@h/shop?ssl_ca=/x")
    assert (found.host, found.password, found.tls) == ("h", password.replace("%40", "@"), (("ssl_ca", "/x"),))


def test_white_space_around_it() -> None:
    """As behind a secret that is mounted or made with echo."""
    assert parse(f" {LOGIN}\n") == parse(LOGIN)


def test_yes_and_no() -> None:
    found = parse(f"{LOGIN}?ssl_ca=/x&ssl_verify_cert=OFF&ssl_verify_identity=yes").connect_arguments()
    assert (found["ssl_verify_cert"], found["ssl_verify_identity"]) == (False, True)

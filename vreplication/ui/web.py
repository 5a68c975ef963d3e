"""What holds for every answer: its headers, where the app is behind a proxy, how a wrong value is told.

What must stay true: nothing is kept by a browser or a proxy, and nothing runs in the page that is not ours.
"""

from __future__ import annotations

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vreplication.planning.fields import said

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # Airflow shows the page in a frame, and from the same origin.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'",
}


class WithPrefix:
    """Puts back the prefix of Airflow's base_url where a proxy has taken it off: routes are looked for behind it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = str(scope.get("app_root_path") or "").rstrip("/")
        # A proxy may have left it on.
        if prefix and not scope.get("path", "").startswith(f"{prefix}/"):
            raw = scope.get("raw_path") or scope["path"].encode()
            scope = {**scope, "path": prefix + scope["path"], "raw_path": prefix.encode() + raw}
        await self._app(scope, receive, send)


class WithHeaders:
    """On every answer, as it begins: one that lasts is not collected."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def begin(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, begin)


def in_a_sentence(request: Request, error: Exception) -> JSONResponse:
    """A value that no route takes, as one sentence."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": said(error)}, status_code=422)

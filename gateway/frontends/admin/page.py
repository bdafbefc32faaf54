"""
The operators' page.

    GET /             the page, in any browser
    GET /page/NAME    its scripts, styles and icon
    GET /page/access  {"credentials": true}: this client needs credentials for everything else
    GET /page/modules {"modules": ["NAME"]}: the scripts of extensions, which are files of the page

The files are the same for everyone and contain no figures, so they need no credentials. The page
reads `/status`, `/events` and `/v1/...` with the credentials that its user types in: it asks first
whether it needs any, because each request without them would be reported as refused. The page loads
nothing from elsewhere, which the Content-Security-Policy enforces.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

import attrs

from gateway.extensions.listing import extensions
from gateway.frontends.admin.operators import json_answer, needs_credentials
from gateway.frontends.auth import Authorizer
from gateway.wire.http.messages import Headers, Request, Response

PATH: Final = "/"
PREFIX: Final = "/page/"
_ACCESS: Final = f"{PREFIX}access"
_MODULES: Final = f"{PREFIX}modules"
_FOLDER: Final = "web"
_INDEX: Final = "index.html"
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'"),
        *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        # No text becomes markup, even by mistake: names of entities are chosen by others.
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
_SAFETY: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),  # requested again each time: the ETag answers
)


@attrs.frozen
class _File:
    content: bytes
    content_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the client has this version."""
        known = request.headers.get("If-None-Match") or ""
        fields = (("ETag", self.tag), *_SAFETY)
        if self.tag in (each.strip() for each in known.split(",")):
            return Response(status=304, headers=Headers.of(fields))
        headers = Headers.of((("Content-Type", self.content_type), *fields))
        return Response(status=200, headers=headers, body=self.content)


def page_answer(request: Request, authorizer: Authorizer) -> Response | None:
    """The answer to a request for the page or one of its files; None: it is for another path."""
    if request.path == _ACCESS:
        return json_answer(200, {"credentials": needs_credentials(authorizer)})
    if request.path == _MODULES:
        names = [name for extension in extensions() for name in extension.page]
        return json_answer(200, {"modules": names})
    if request.path == PATH:
        return _files()[_INDEX].answer(request)
    if not request.path.startswith(PREFIX):
        return None
    file = _files().get(request.path.removeprefix(PREFIX))
    return None if file is None else file.answer(request)


@cache
def _files() -> Mapping[str, _File]:
    """All files of the page by name. The program's own files: their names aren't paths."""
    packages = ["gateway.frontends.admin", *(each.package for each in extensions() if each.page)]
    folders = [resources.files(package).joinpath(_FOLDER) for package in packages]
    found = [each for folder in folders for each in folder.iterdir() if each.is_file()]
    return {each.name: _file(each.name, each.read_bytes()) for each in found}


def _file(name: str, content: bytes) -> _File:
    return _File(
        content=content,
        content_type=_TYPES[name.rpartition(".")[2]],
        tag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    )

"""The local server: the page's files, and what the explorations compute, to this machine alone.

It listens on the loopback interface. Other websites open in the same browser could still send
requests to it, so that only requests are answered whose Host is this server's own address (which a
name that was made to point here is not) and whose Origin, if they have one, is this page; what
computes must be sent as JSON, which a foreign page's form cannot.
"""

from __future__ import annotations

import json
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from .. import _core
from . import convolution, mirror, rotation
from .attention import Attention
from .digits import Digits, Unavailable
from .fields import BadRequest, Fields

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 17
_DRAINED = 1 << 24  # bytes of a refused body that are read, so that the sender can read the answer
_SECONDS = 30  # that a connection may be silent
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
}
_TEXT = "text/plain; charset=utf-8"
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

Compute = Callable[[Fields], dict[str, Any]]


class _Refusal(Exception):
    """A request that is answered by a status and one line."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Server(ThreadingHTTPServer):
    """The page and its explorations on a port of the loopback interface; 0 takes any free one.

    OSError where the port is taken or not allowed.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, digits: Digits, attention: Attention) -> None:
        self.computes: Mapping[str, Compute] = {
            "/api/convolution": convolution.compute,
            "/api/mirror": mirror.compute,
            "/api/rotation": rotation.compute,
            "/api/digits": digits.compute,
            "/api/attention": attention.compute,
        }
        # All that can be fetched, by its path: no path is ever looked up in the file system.
        self.pages = _page_files()
        about = {
            "version": _core.__version__,
            "isa": _core.cpu_isa(),
            "threads": _core.get_num_threads(),
            "attention": attention.about(),
        }
        self.pages["/about.json"] = ("application/json", json.dumps(about).encode())
        super().__init__((HOST, port), _Handler)
        self.hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        if self.port == 80:
            self.hosts |= {HOST, "localhost"}

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{HOST}:{self.port}/"

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service about the address.
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.port

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone is no error; anything else is shown."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()


def _page_files() -> dict[str, tuple[str, bytes]]:
    pages = {}
    for entry in files(__package__).joinpath("page").iterdir():
        kind = _TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            pages[f"/{entry.name}"] = (kind, entry.read_bytes())
    pages["/"] = pages.pop("/index.html")
    return pages


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _SECONDS

    def version_string(self) -> str:
        return "fusednn"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: the terminal shows the address, and errors of the program."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses (lines that are no HTTP), in our form."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status, message = HTTPStatus.METHOD_NOT_ALLOWED, "this method is not allowed"
        self._answer(status, _TEXT, f"{message or status.phrase}\n".encode())

    def do_GET(self) -> None:
        self._handle(self._page)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._handle(self._computed)

    def do_other(self) -> None:
        self._handle(self._known_path)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = do_other

    def _handle(self, respond: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._admit()
            kind, content = respond()
            status = HTTPStatus.OK
        except _Refusal as refusal:
            status = refusal.status
            kind, content = _TEXT, f"{refusal}\n".encode()
        except OSError:
            raise
        except Exception:
            traceback.print_exc()
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            kind, content = (
                "text/plain; charset=utf-8",
                b"an error of the program: see its terminal\n",
            )
        self._answer(status, kind, content)

    def _admit(self) -> None:
        """Refuses what does not come from this page, or from somebody who typed the address."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            raise _Refusal(HTTPStatus.BAD_REQUEST, "expected one Host header")
        if hosts[0].lower() not in self.server.hosts:
            raise _Refusal(HTTPStatus.FORBIDDEN, f"this server answers to {self.server.url} alone")
        origin = self.headers.get("Origin")
        if origin is not None and origin.lower() != f"http://{hosts[0].lower()}":
            raise _Refusal(HTTPStatus.FORBIDDEN, "other websites may not use this server")

    @property
    def _route(self) -> str:
        return self.path.partition("?")[0]

    def _known_path(self) -> tuple[str, bytes]:
        """Refuses, with the right one of two reasons, a method that the path does not have."""
        if self._route in self.server.pages:
            allowed = "GET"
        elif self._route in self.server.computes:
            allowed = "POST"
        else:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        raise _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"this address takes {allowed} alone")

    def _page(self) -> tuple[str, bytes]:
        return self.server.pages.get(self._route) or self._known_path()

    def _computed(self) -> tuple[str, bytes]:
        compute = self.server.computes.get(self._route)
        if compute is None:
            return self._known_path()
        try:
            content = json.loads(self._body(), parse_constant=_no_number)
        except RecursionError:
            raise _Refusal(HTTPStatus.BAD_REQUEST, "the request is nested too deeply") from None
        except ValueError as error:
            text = " ".join(str(error).split())
            raise _Refusal(HTTPStatus.BAD_REQUEST, f"the request is not JSON: {text}") from None
        try:
            result = compute(Fields(content))
        except BadRequest as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)) from None
        except Unavailable as error:
            raise _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        return "application/json", json.dumps(result, allow_nan=False).encode()

    def _body(self) -> bytes:
        kind = self.headers.get_content_type()
        if kind != "application/json":
            text = "expected Content-Type: application/json"
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
        lengths = self.headers.get_all("Content-Length", [])
        if not lengths or "Transfer-Encoding" in self.headers:
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(lengths) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "Content-Length is not a whole number")
        if len(lengths[0]) > 18 or (length := int(lengths[0])) > LARGEST_BODY:
            text = f"the request is too large, expected at most {LARGEST_BODY} bytes"
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            raise _Refusal(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive") from None
        if len(body) < length:
            raise _Refusal(HTTPStatus.BAD_REQUEST, f"the request ends after {len(body)} bytes")
        return body

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.request_version = self.protocol_version  # also to what is no HTTP: a status line
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST" if self._route in self.server.computes else "GET")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.close_connection = True
        if status >= HTTPStatus.BAD_REQUEST:
            self._drain()

    def _drain(self) -> None:
        """Reads what may still come: closing on unread bytes would reset the connection, and the
        sender, still sending, would see no answer."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(2)
            left = _DRAINED
            while left > 0 and (got := len(self.rfile.read1(1 << 16))):
                left -= got


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")

"""Endpoint: the numbers of a run over HTTP, for Prometheus, for `dali-feed watch`, for a browser.

The law: no port is opened unasked, and none but on this machine unless an address says so. Between two requests its
thread sleeps in the kernel. A request is answered in a thread of its own, which shares no lock with the loader.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from dali_feed.errors import ConfigError
from dali_feed.packages import needed
from dali_feed.watching.exposition import Collector, as_json
from dali_feed.watching.watched import Gives, Look, Watched

__all__ = ["Endpoint", "serve"]

PLAIN = "text/plain; charset=utf-8"
PATHS = "/metrics, /stats.json, /healthz"
SILENCE = 10.0  # seconds that a connection may say nothing


class Endpoint:
    """Answers until it is closed. A context manager.

    Args:
        address: of the interface that it listens at; "127.0.0.1" is this machine alone, "0.0.0.0" is every interface.
        port: 0 for one that is free.

    Attributes:
        url: where it is, `http://127.0.0.1:9400`.
        port: that it listens at.

    Raises:
        ConfigError: the address or the port cannot be used.
        MissingPackageError: prometheus-client is not installed.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        with needed():
            from prometheus_client import CollectorRegistry
        self._watched: list[Watched] = []
        self._registry: Any = CollectorRegistry(auto_describe=False)
        self._registry.register(Collector(self.looks))
        self._server = _bound(address, port, self)
        self._at = str(self._server.server_address[0]), int(self._server.server_address[1])
        self.port = self._at[1]
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}"
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dali_feed-metrics", daemon=True)
        _open.add(self)
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C, or a system without threads to give: the port is free again
            self.close()
            raise

    def add(self, watched: Watched) -> None:
        """Report a further loader too; one that is gone is not reported any more."""
        self._watched = [*(each for each in self._watched if each.there), watched]

    def looks(self) -> list[Look]:
        """Every loader as it is now."""
        return [each.look() for each in self._watched if each.there]

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Status, type and body for a path."""
        match path:
            case "/metrics":
                with contextlib.suppress(Exception):  # of a version that is none; any other is met again
                    return self._metrics(accept)
                return self._metrics("")
            case "/stats.json":
                return 200, "application/json", as_json(self.looks()).encode()
            case "/healthz":
                well = any(each.there for each in self._watched)
                return (200, PLAIN, b"ok\n") if well else (503, PLAIN, b"no loader\n")
        return 404, PLAIN, f"dali_feed: the paths here are {PATHS}\n".encode()

    def _metrics(self, accept: str) -> tuple[int, str, bytes]:
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        return 200, kind, encode(self._registry)

    def _run(self) -> None:
        while not self._closed:
            self._server.handle_request()  # sleeps until there is one

    def close(self) -> None:
        """Stop listening. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError), socket.create_connection(self._at, 1.0):
            pass  # which wakes the thread
        if self._thread.is_alive():
            self._thread.join(SILENCE)
        self._server.server_close()

    def forget(self) -> None:
        """In a process that was forked off: this one does not listen."""
        self._closed = True
        self._server.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    loader: Gives | Mapping[str, Gives], port: int = 0, address: str = "127.0.0.1", *, job: str | None = None
) -> Endpoint:
    """Report over HTTP what a loader does, until the endpoint is closed: `with watching.serve(loader) as at: ...`.

    `/metrics` is Prometheus text, `/stats.json` what `dali-feed watch` reads, `/healthz` says that the process answers.
    Values are read when a request comes. There is no password: think before you give another address.

    Args:
        loader: a `DataLoader`, a `Feed` or a `LiveFeed`; or several, each by a name of its own.
        port: to listen at; 0: a free one, which `url` of the endpoint names.
        address: of the interface; "0.0.0.0" for every one.
        job: what the run is called; None: DALI_FEED_JOB or SLURM_JOB_ID.

    Raises:
        ConfigError: what is given cannot be watched, or the port cannot be used.
        MissingPackageError: prometheus-client is not installed.
    """
    loaders = loader if isinstance(loader, Mapping) else {"": loader}
    if not loaders:
        msg = "loader: must be a loader, or a dict of loaders by name; found none"
        raise ConfigError(msg)
    watched = [Watched(each, name, job) for name, each in loaders.items()]
    endpoint = Endpoint(address, port)
    for each in watched:
        endpoint.add(each)
    return endpoint


_open: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_open):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)


def _bound(address: str, port: int, endpoint: Endpoint) -> _Server:
    class Handler(_Handler):
        of = weakref.ref(endpoint)

    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        msg = f"port: must be an int in 0..65535; found {port!r}"
        raise ConfigError(msg)
    if not isinstance(address, str) or not address:
        msg = f"address: must be the address of a network interface, such as 127.0.0.1 or 0.0.0.0; found {address!r}"
        raise ConfigError(msg)
    family = _Server6 if ":" in address else _Server
    try:
        return family((address, port), Handler)
    except OSError as error:
        msg = f"{address}:{port}: must be an address of this machine with a free port; found: {error.strerror or error}"
        raise ConfigError(msg) from error


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # of a run before this one whose connections are not over

    def server_bind(self) -> None:
        """Without a look at what this machine is called, which may wait for a name server."""
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, *_: object) -> None:
        """Say nothing: a client that gives up is its own business."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENCE
    of: weakref.ref[Endpoint]

    def do_GET(self) -> None:
        """One of the pages."""
        self._send(body=True)

    def do_HEAD(self) -> None:
        """The same without its text."""
        self._send(body=False)

    def _send(self, *, body: bool) -> None:
        endpoint = self.of()
        if endpoint is None:
            status, kind, text = 503, PLAIN, b"closed\n"
        else:
            try:
                status, kind, text = endpoint.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            except Exception as error:  # noqa: BLE001  whatever it is, who asked is told
                status, kind, text = 500, PLAIN, f"{type(error).__name__}: {error}\n".encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")  # else a thread would wait for more
        self.end_headers()
        if body:
            self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name in the base
        """Say nothing: a line per scrape would fill the run's log."""

"""A web server of files with ranges, ETags and If-Match, whose faults are items in a script.

A fault is taken by the next GET of its file that asks for a range: "503", "429", "403" (refused with that status),
"reset" (the connection is cut in the middle of the body), "short" (it ends early), "whole" (200 and the whole file in
place of 206), "shifted" (another range than was asked for), "other" (another file's bytes and ETag), "hang" (no answer
until the server closes), "trickle" (a byte every 200 ms). A GET of the first byte alone asks what a file is: it takes
"look 503" and the like, and no others. A GET of `bucket?list-type=2` is answered with a list, as S3 does it.
"""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs

LOOK = "bytes=0-0"


class Web:
    """Serves `files`, name -> bytes, at `url` until it is closed. A context manager.

    faults    name -> what its next requests for ranges meet
    moved     name -> where else its requests are sent (302)
    requests  (method, name, the range asked for or ""), in the order of their coming
    delay     seconds before each answer
    hanging   set when an answer does not come, or has begun to trickle
    left      set when who waited for such an answer has closed the connection
    """

    def __init__(self, files: dict[str, bytes], *, delay: float = 0, tags: bool = True) -> None:
        self.files, self.delay, self.tags = files, delay, tags
        self.moved: dict[str, str] = {}
        self.headers: list[dict[str, str]] = []
        self.queries: list[str] = []
        self.faults: defaultdict[str, deque[str]] = defaultdict(deque)
        self.requests: list[tuple[str, str, str]] = []
        self.hanging, self.left, self.closed = threading.Event(), threading.Event(), threading.Event()
        web = self

        class Handler(_Handler):
            site = web

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def tag(self, name: str) -> str:
        """The ETag of a file as it is now."""
        return f'"{hashlib.sha256(self.files[name]).hexdigest()[:16]}"' if self.tags else ""

    def ranges(self, name: str) -> list[str]:
        """The ranges that were asked for of a file, without those that only asked what it is."""
        return [
            asked for method, which, asked in list(self.requests) if which == name and method == "GET" and asked != LOOK
        ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that give up are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Web

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_HEAD(self) -> None:
        """What a file is."""
        self._answer("")

    def do_GET(self) -> None:
        """A file or a range of it, or what the script has in its place."""
        name = self.path.partition("?")[0].strip("/")
        asked, faults = self.headers.get("Range", ""), self.site.faults[name]
        if "list-type=2" in self.path:
            self._list(name)
        elif faults and asked and faults[0].startswith("look ") == (asked == LOOK):
            self._answer(faults.popleft().removeprefix("look "))
        else:
            self._answer("")

    def _list(self, bucket: str) -> None:
        """The names in a bucket, under a prefix; with a delimiter folders in place of what lies in them."""
        site, query = self.site, parse_qs(self.path.partition("?")[2])
        site.requests.append((self.command, bucket, ""))
        prefix, sign = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        names = [name.partition("/")[2] for name in site.files if name.startswith(f"{bucket}/{prefix}")]
        inside = {name: name.removeprefix(prefix).partition(sign)[1] if sign else "" for name in names}
        folders = {prefix + name.removeprefix(prefix).partition(sign)[0] + sign for name in names if inside[name]}
        body = "<ListBucketResult><IsTruncated>false</IsTruncated>"
        for name in names:
            if not inside[name]:
                size = len(site.files[f"{bucket}/{name}"])
                body += (
                    f"<Contents><Key>{name}</Key><Size>{size}</Size><LastModified>2024-01-01T00:00:00Z</LastModified>"
                )
                body += "</Contents>"
        for folder in sorted(folders):
            body += f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
        data = (body + "</ListBucketResult>").encode()
        self._head(200, len(data), {"Content-Type": "application/xml"})
        self.wfile.write(data)

    def _answer(self, fault: str) -> None:
        site, name = self.site, self.path.partition("?")[0].strip("/")
        asked = self.headers.get("Range", "")
        site.requests.append((self.command, name, asked))
        site.queries.append(self.path.partition("?")[2])
        site.headers.append(dict(self.headers))
        time.sleep(site.delay)
        if name in site.moved:
            self._head(302, 0, {"Location": site.moved[name]})
            return
        if fault == "hang":
            self._hang()
            return
        if name not in site.files or fault.isdecimal():
            self._head(int(fault or 404), 0, {"Retry-After": "0"} if fault in ("429", "503") else {})
            return
        data, tag = site.files[name], site.tag(name)
        if fault == "other":
            data, tag = bytes(len(data)), '"another"'
        elif tag and self.headers.get("If-Match", tag) != tag:
            self._head(412, 0, {})
            return
        if asked and not data:
            self._head(416, 0, {"Content-Range": "bytes */0"})
            return
        begin, end, status = 0, len(data), 200
        if (found := re.fullmatch(r"bytes=(\d+)-(\d+)", asked)) and fault != "whole":
            begin, end, status = int(found[1]), min(int(found[2]) + 1, len(data)), 206
        moved = 512 if fault == "shifted" else 0
        headers = {"ETag": tag} if tag else {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        if status == 206:
            headers["Content-Range"] = f"bytes {begin + moved}-{end - 1 + moved}/{len(data)}"
        body = data[begin + moved : end + moved].ljust(end - begin, b"\0") if self.command == "GET" else b""
        self._head(status, end - begin, headers)
        if fault == "trickle":
            self._trickle(body)
            return
        if fault in ("reset", "short"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "reset":  # no FIN but an RST
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self.wfile.write(body)

    def _hang(self) -> None:
        self.close_connection = True
        self.site.hanging.set()
        self.connection.settimeout(0.05)
        while not self.site.closed.is_set():
            try:
                self.connection.recv(1)  # nobody asks for more behind a request that has no answer
            except TimeoutError:
                continue
            except OSError:
                pass
            self.site.left.set()
            return

    def _trickle(self, body: bytes) -> None:
        self.site.hanging.set()
        try:
            for k in range(len(body)):
                self.wfile.write(body[k : k + 1])
                if self.site.closed.wait(0.2):
                    self.close_connection = True
                    return
        except OSError:
            self.site.left.set()
            raise

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(size), "Accept-Ranges": "bytes"}.items():
            self.send_header(name, value)
        self.end_headers()

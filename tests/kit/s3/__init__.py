"""An S3 server for tests: S3Proxy, which keeps its objects in memory, jars from Maven Central, up in four seconds.

Needs Java and, the first time, Maven.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import obstore
from kit.broker.real import Beside, brought, free_ports
from obstore.store import S3Store

POM = Path(__file__).with_name("pom.xml")
VERSION = "2.6.0"
USER, SECRET = "alice", "alice-secret"
START_SECONDS = 300.0  # on a busy machine
_CONF = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={user}
s3proxy.credential={secret}
jclouds.provider=transient
"""


def unavailable() -> str | None:
    """Why there can be no server here; None where there can."""
    if shutil.which("java") is None:
        return "no `java` on the PATH"
    if not _ready(_folder()) and shutil.which("mvn") is None:
        return f"no `mvn` on the PATH to bring the jars of S3Proxy into {_folder()}"
    return None


class S3Server:
    """One server in a process of its own. A context manager."""

    def __init__(self) -> None:
        self._port = free_ports(1)[0]
        self._home = tempfile.TemporaryDirectory(prefix="dali-feed-s3-")
        conf = Path(self._home.name, "s3.conf")
        conf.write_text(_CONF.format(port=self._port, user=USER, secret=SECRET))
        brief = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        jars = _folder() if _ready(_folder()) else brought(POM, _folder())
        self._kept = jars / "classes.jsa"  # what Java makes of the classes, the first time; a core-second of each other
        self._new = None if self._kept.exists() else Path(self._home.name, "classes.jsa")
        classes = (
            f"-XX:SharedArchiveFile={self._kept}" if self._new is None else f"-XX:ArchiveClassesAtExit={self._new}"
        )
        command = ["java", *brief, classes, "-cp", f"{jars}/*", "org.gaul.s3proxy.Main", "--properties", str(conf)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, start_new_session=True, **quiet)
        self._beside = Beside(self._process, Path(self._home.name))
        self._wait()

    def options(self, secret: Any = SECRET) -> dict[str, Any]:
        """What `storage_options` takes."""
        url = f"http://127.0.0.1:{self._port}"
        return {"access_key_id": USER, "secret_access_key": secret, "endpoint": url, "region": "us-east-1"}

    def bucket(self, name: str) -> S3Store:
        """A new bucket, to put objects into."""
        store = S3Store(name, client_options={"allow_http": True}, **self.options())
        request = urllib.request.Request(obstore.sign(store, "PUT", "", timedelta(minutes=1)), method="PUT")  # noqa: S310  ours
        urllib.request.urlopen(request).close()  # noqa: S310
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._new is None:
            self._process.kill()
        else:
            self._process.terminate()  # it writes what it made of the classes
        self._process.wait()
        self._beside.let_go()
        if self._new is not None and self._new.exists():
            shutil.move(shutil.copy(self._new, f"{self._kept}.{os.getpid()}"), self._kept)
        self._home.cleanup()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    msg = f"S3Proxy did not start: exit status {self._process.poll()}"
                    raise RuntimeError(msg) from None
                time.sleep(0.05)
            else:
                return


def _folder() -> Path:
    # Not XDG_CACHE_HOME: tests of indexes move that.
    return Path(os.environ.get("DALI_FEED_S3_DIR", Path.home() / ".cache" / "dali_feed" / f"s3proxy-{VERSION}"))


def _ready(folder: Path) -> bool:
    return (folder / f"s3proxy-{VERSION}.jar").exists()

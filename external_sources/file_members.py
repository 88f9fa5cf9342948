"""Members of single files: their bytes, their path, and the label where there is one."""

from __future__ import annotations

import threading
from typing import Any

from dali_feed.errors import ConfigError
from dali_feed.external_sources.member_source import MemberReader, MemberSource, foremost
from dali_feed.records.source import LABEL, Block, Int64s, Reader, Slabs, Source

__all__ = ["BYTES", "PATH", "FileMembers"]

BYTES, PATH = "bytes", "path"


class FileMembers(MemberSource):
    """Files of a list with the members that were asked for. See `records.members.Members.giving`.

    Raises ConfigError for a member that no file has, and for an image made of a path or a label.
    """

    def __init__(
        self, files: Source, paths: list[str], labels: Int64s | None, image: str | None, members: tuple[str, ...]
    ) -> None:
        super().__init__(files, image, members)
        known = (BYTES, PATH) if labels is None else (BYTES, PATH, LABEL)
        told = "a file's members are"
        self.asked = {name: foremost(name, known, told) for name in members}
        if image is not None and foremost(image, known, told) != BYTES:
            msg = f"member {image!r}: an image is made of a file's {BYTES!r}; write Image({BYTES!r})"
            raise ConfigError(msg)
        self.paths, self.labels = paths, labels
        self.opens = image is not None or BYTES in self.asked.values()
        self.with_image = image is not None

    def _opened(self, slabs: Slabs, stop: threading.Event) -> Reader:
        return _FileReader(self, slabs, stop)


class _FileReader(MemberReader):
    """Opens a file only where its bytes are asked for."""

    def __init__(self, of: FileMembers, slabs: Slabs, stop: threading.Event) -> None:
        super().__init__("FileList", len(of.paths), slabs, stop)
        self._of = of

    def _fill(self, block: Block, rows: Int64s) -> None:
        of, paths = self._of, [self._of.paths[row] for row in rows.tolist()]
        members: dict[str, Any] = {PATH: paths, LABEL: None if of.labels is None else of.labels[rows]}
        if of.opens:
            members[BYTES] = [self._loaded(path, block, k) for k, path in enumerate(paths)]
        if of.with_image:
            block.payloads[:] = [view or memoryview(b"") for view in members[BYTES]]
        block.fields.update({name: members[member] for name, member in of.asked.items()})

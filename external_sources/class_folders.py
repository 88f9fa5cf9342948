"""The files of each class: what lies below its folder, links followed, as torchvision's `ImageFolder` lists them.

The law: a link that leads back to a folder it lies in is not followed. torchvision follows it until the system refuses,
after 40 turns: every image 40 times, and those of other classes under this one's label.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

__all__ = ["files_of"]

log = logging.getLogger("dali_feed")


def files_of(root: str, classes: Sequence[str]) -> list[list[str]]:
    """For each class, a folder in `root`, the paths of all its files, in torchvision's order."""
    back: list[str] = []
    found = []
    for name in classes:
        folders = sorted(_folders(root, os.path.join(root, name), back))
        found.append([os.path.join(folder, file) for folder, files in folders for file in sorted(files)])
    if back:
        log.warning(
            "%s: a link must not lead back to a folder that it lies in; found %d that do, such as %s to %s; they are"
            " not followed",
            root,
            len(back),
            min(back),
            os.path.realpath(min(back)),
        )
    return found


def _folders(root: str, top: str, back: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each folder from `top` downwards with the names of its files; links that lead back come into `back`."""
    outside = {root: frozenset([_identity(root)])}  # of each folder: itself, and those that it was reached through

    def leads_back(path: str, outer: str) -> bool:
        here = _identity(path)
        outside[path] = outside[outer] | {here}
        if here in outside[outer]:
            back.append(path)
        return here in outside[outer]

    if leads_back(top, root):
        return
    for folder, inner, files in os.walk(top, followlinks=True):
        inner[:] = [name for name in inner if not leads_back(os.path.join(folder, name), folder)]  # what is walked
        yield folder, files


def _identity(path: str) -> object:
    """What a folder and all links to it have in common; its path where it cannot be looked at."""
    try:
        told = os.stat(path)
    except OSError:  # gone, or denied: os.walk passes over it as well
        return path
    return told.st_dev, told.st_ino

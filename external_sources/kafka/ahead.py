"""The memory that C fills with the records of a read: taken ahead for all of them, so that C is asked once.

The law: no read fails, and no slab is held, for what was only expected. What the lease gave ahead and C has not come to
goes back before more is asked of the lease, before Python takes records itself, and at the end of the read.
"""

from __future__ import annotations

from dali_feed.native.kafka import MemoryInC, RowsInC, address
from dali_feed.records.source import Lease

__all__ = ["Memory"]

_MOST_AHEAD = 8  # slabs: records may have become small, and to ask C once per so many costs nothing


class Memory:
    """Pieces of a lease's slabs, in the order in which C is to fill them; a piece's number is its place in `pieces`.

    told  what C is told of them
    """

    def __init__(self, told: RowsInC, lease: Lease) -> None:
        self._told, self._lease = told, lease
        self.pieces: list[memoryview] = []
        self._ahead: dict[int, memoryview] = {}  # number -> those that the lease gave ahead
        self._returned: set[int] = set()  # those that the lease has again
        self._grown: list[MemoryInC] = []  # those that it gave one by one
        self._next: list[MemoryInC] = []  # as C was told of them: it has gone through the first ones

    def take_ahead(self, rows: int, row_bytes: int) -> None:
        """For so many rows, each of so many bytes. A record that no longer fits leaves half of a slab at most."""
        slab = self._lease.slab_bytes
        if 0 < row_bytes <= slab // 2:
            whole, rest = divmod(rows, slab // row_bytes)
            size = min(whole * slab + rest * row_bytes, _MOST_AHEAD * slab)
            line = [self._numbered(view) for view in self._lease.ahead(size)]
            self._ahead = {each.number: self.pieces[each.number] for each in line}
            self._line_up(line)

    def grow(self, need: int, expected: int) -> None:
        """Another piece for the next records, the first of them of `need` bytes, all of them of `expected`.

        It is a slab at most: what does not fit into the rest of one goes into the next, so that a lease is as well
        filled as by message. A large record leaves the rest of its slab to those behind it.
        """
        told, spare, slab = self._told, self._spare(), self._lease.slab_bytes
        fits = next((k for k, each in enumerate(spare) if each.room >= need), None)
        if fits is None:
            self.give_back()  # or they count against what one lease may take
            now, spare = self._numbered(self._lease.room(max(need, min(slab, expected)))), self._spare()
            self._grown.append(now)
        else:
            now, spare = spare[fits], [*spare[fits + 1 :], *spare[:fits]]
        if need > slab // 2 and told.filled < told.room:
            spare.insert(0, self._numbered(self.pieces[told.number][told.filled : told.room]))
        self._line_up(spare)
        told.memory, told.room, told.number, told.filled = now.at, now.room, now.number, 0

    def mark(self) -> None:
        """The place that `undo` goes back to."""
        told = self._told
        self._marked = told.memory, told.room, told.filled, told.number
        self._then = self._spare(), len(self._grown)

    def undo(self) -> None:
        """C goes on from the mark: what it put behind that is not wanted."""
        told, (spare, grown) = self._told, self._then
        told.memory, told.room, told.filled, told.number = self._marked
        self._line_up([*(each for each in spare if each.number not in self._returned), *self._grown[grown:]])
        del self._grown[grown:]

    def give_back(self, filled: int = 0) -> None:
        """To the lease what it gave ahead and C has not come to; `filled` bytes are in the others."""
        unused = {each.number for each in self._spare()} & self._ahead.keys()
        self._lease.back([self._ahead.pop(number) for number in unused], filled)
        self._returned |= unused
        self._line_up([each for each in self._spare() if each.number not in unused])

    def settle(self) -> None:
        """All records have come: what was taken in vain goes back."""
        unused = {each.number for each in self._spare()}
        filled = sum(len(view) for number, view in self._ahead.items() if number not in unused)
        if self._told.number in self._ahead:
            filled -= self._told.room - self._told.filled
        self.give_back(filled)

    def _numbered(self, piece: memoryview) -> MemoryInC:
        self.pieces.append(piece)
        return MemoryInC(address(piece), len(piece), len(self.pieces) - 1)

    def _spare(self) -> list[MemoryInC]:
        """Those that C has not come to."""
        return self._next[len(self._next) - self._told.spare :]

    def _line_up(self, line: list[MemoryInC]) -> None:
        self._next = line
        self._told.next, self._told.spare = (MemoryInC * len(line))(*line), len(line)

"""Column: how a column of a batch is made from a member of the records.

The law: what a value needs to be is known when its record is read, so a member that is missing or malformed makes a bad
record, and its slot goes to another. Nothing is copied before a batch is made, where the column can help it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dali_feed.errors import ConfigError
from dali_feed.options import Decode
from dali_feed.records.source import Stage

Faults = dict[int, str]  # row -> why its record cannot be used


class Required(enum.Enum):
    """What stands in place of a default where there is none."""

    REQUIRED = "required"


REQUIRED = Required.REQUIRED


@dataclass(frozen=True)
class Column:
    """What a column takes and gives: a base for frozen dataclasses with a field `member`. Used by many threads at once.

    A user's own column has `read`; it has `batch` if a batch is not what `read` kept, and `open` and `settled` if the
    first record can tell what the user did not.

    member   that it is made from, or several, "jpg;png", of which the first one counts
    default  what stands for a record without that member, or with null; a record without it is a bad one where no
             default is given
    """

    default: Any = field(default=REQUIRED, kw_only=True, repr=False)

    if TYPE_CHECKING:
        member: str  # a field of the subclass
    stage: ClassVar[Stage] = "source"  # what refuses a value: the screen, of what is an image

    def __post_init__(self) -> None:
        """A column's own checks come after this one: ConfigError for what is no member's name."""
        if not isinstance(self.member, str) or not self.member.strip(" ;."):
            rule = "member must be a name such as 'txt', or several such as 'jpg;png'"
            raise ConfigError(f"{type(self).__name__}: {rule}; found {self.member!r}")

    @property
    def title(self) -> str:
        """What begins an error of a setting: `Array('depth')`."""
        return f"{type(self).__name__}({self.member!r})"

    @property
    def optional(self) -> bool:
        """Whether a record may lack its member."""
        return self.default is not REQUIRED

    @property
    def open(self) -> bool:
        """Whether something is left to the first record: then `settled` is called with its value."""
        return False

    def settled(self, first: Any) -> Self:
        """This column, with what the first record tells; None: none of the first few has a value.

        ConfigError if it tells too little. It is called only if the column is `open`.
        """
        return self

    def decoding(self, decode: Decode) -> Self:
        """This column in a loader that decodes images so; one that is no image is as it is."""
        del decode
        return self

    def read(self, values: Any, faults: Faults) -> Any:
        """What is kept of a read's values until they stand in a batch, row for row: an array, a list, or `Pieces`.

        Called by the threads that read. `values` is a sequence without a missing one: a value is a view of bytes, or
        what the source has. It may be empty. Where it is a `dali_feed.records.pieces.Pieces`, all views can be asked
        about at once, and it can be kept as it is. Rows that are put into `faults` may be given any value.
        """
        raise NotImplementedError

    def read_default(self, faults: Faults) -> Any:
        """One row of what `read` keeps, for records without the member; a `default` that cannot be is a fault."""
        return self.read([self.default], faults)

    def batch(self, values: Any) -> Any:
        """The column of a batch, from rows of what `read` kept, while the memory of its views is still there."""
        return values

    def of_lanes(self, values: Any, lanes: int) -> Any:
        """The same, from rows of so many lanes, equally many each, one lane after the other.

        For a column that makes something of several records together: what it makes of one lane must not depend on the
        other lanes, because a rank has more or fewer lanes at another world size.
        """
        del lanes
        return self.batch(values)

"""Several sources mixed in exact shares, slot by slot."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dali_feed.checks import whole
from dali_feed.errors import ConfigError
from dali_feed.external_sources.concat import Concat
from dali_feed.records.mixture import Mixture, Stop
from dali_feed.records.source import Snapshot, Source

__all__ = ["Mix"]

Weights = Sequence[float]


class Mix(Concat):
    """The records of several bounded sources, each batch in the proportion of the weights.

    sources  as of `Concat`
    weights  a number per source, of 0 or more; None: equal. A dict {epoch: weights} is a schedule: they hold from that
             epoch on
    linear   of a schedule: between two of its epochs weights go from one to the other in equal steps
    stop     where an epoch ends: "first", before the first source would give a record again, so that nothing comes
             twice; "all", when each source of a weight above 0 has given all its records, smaller ones beginning again
             in another order
    samples  of an epoch, in the place of `stop`; sources begin again as often as it takes

    Of the first n samples of an epoch each source has its share to within one, for any n: so has every global batch to
    within two, and of two sources to within one; a batch whose shares are whole numbers has exactly those, as 7 and 3
    of 10 for weights 0.7 and 0.3. A bad record is replaced by one of its own source. Order and position are pure, as of
    any source; the random numbers of a sample that comes again within an epoch are others. Each epoch begins every
    source again, in another order if there is a shuffle. A source with weight 0 gives nothing.

    Weights count in parts of 10,000 where no smaller whole numbers are in their proportion.

    Raises ConfigError for values that are not allowed.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Weights | Mapping[int, Weights] | None = None,
        *,
        linear: bool = False,
        stop: Stop = "first",
        samples: int | None = None,
    ) -> None:
        super().__init__(sources)
        if stop not in ("first", "all"):
            msg = f"Mix: stop must be 'first' or 'all'; found {stop!r}"
            raise ConfigError(msg)
        scheduled = isinstance(weights, Mapping)
        if linear and not scheduled:
            msg = "Mix: linear needs a schedule; give weights={epoch: weights, ...}, or leave linear out"
            raise ConfigError(msg)
        if weights is None:
            weights = [1.0] * len(self._sources)
        table = dict(weights) if isinstance(weights, Mapping) else {0: weights}
        if not table:
            msg = "Mix: a schedule of weights must have at least one epoch; found an empty one"
            raise ConfigError(msg)
        checked = sorted((whole("weights: epoch", at, 0), self._checked(its)) for at, its in table.items())
        count = None if samples is None else whole("samples", samples, 1)
        self._mix = Mixture(tuple(checked), bool(linear), stop, count)

    def _checked(self, weights: object) -> tuple[float, ...]:
        given = list(weights) if isinstance(weights, Sequence) and not isinstance(weights, str) else [weights]
        numbers = [w for w in given if isinstance(w, int | float) and not isinstance(w, bool)]
        right = len(numbers) == len(given) == len(self._sources)
        if not right or not all(math.isfinite(w) and w >= 0 for w in numbers) or not any(numbers):
            msg = (
                f"Mix: weights must be a number of 0 or more for each of the {len(self._sources)} sources, and "
                f"at least one above 0; found {weights!r}"
            )
            raise ConfigError(msg)
        return tuple(float(w) for w in numbers)

    def _check(self, part: Snapshot, source: Source) -> None:
        if part.mix is not None:
            msg = (
                f"Mix: a mixture cannot be part of another; give its sources, with weights multiplied; found {source!r}"
            )
            raise ConfigError(msg)
        if not len(part):
            msg = f"Mix: each source must have records; found none in {source!r}"
            raise ConfigError(msg)

    def _joined(self, parts: tuple[Snapshot, ...]) -> Snapshot:
        return dataclasses.replace(super()._joined(parts), parts=parts, present=None, mix=self._mix)

    def _record_bytes(self, parts: tuple[Snapshot, ...]) -> int:
        return max(part.record_bytes for part in parts)

    def _over(self, sources: Sequence[Source]) -> Mix:
        made = Mix(sources)
        made._mix = self._mix
        return made

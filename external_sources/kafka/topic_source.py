"""What a bounded topic and a stream have in common: which records they are of, and what is made of each."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from dali_feed.checks import path_of
from dali_feed.errors import ConfigError
from dali_feed.external_sources.formatted import VALUE, forms_of, with_formats
from dali_feed.external_sources.kafka.addresses import addresses
from dali_feed.external_sources.kafka.claims import UNTOLD, Claims, Follows
from dali_feed.external_sources.kafka.errors import remade
from dali_feed.external_sources.kafka.identity import Asker
from dali_feed.external_sources.kafka.members import Asked, by_path
from dali_feed.external_sources.kafka.messages import original
from dali_feed.external_sources.kafka.options import OURS, Identity, KafkaOptions
from dali_feed.external_sources.kafka.records import LABEL, Codec
from dali_feed.formats.format import Format
from dali_feed.quarantine.letters import Original

__all__ = ["TopicSource"]


class TopicSource:
    """A topic, and what is made of its records. `KafkaTopic` documents the arguments."""

    def __init__(  # noqa: PLR0913  what is read, and how
        self,
        topic: str,
        servers: str | Sequence[str],
        *,
        label: str | None,
        codec: Codec | None,
        fields: Sequence[str] | None,
        config: Mapping[str, Any] | None,
        timeout: float,
        group: str | None,
        format: Format | str | Mapping[str, Format | str] | None,  # noqa: A002  what users call it
        claims: str | os.PathLike[str] | None,
    ) -> None:
        if not isinstance(topic, str) or not topic:
            msg = f"topic: a topic's name is needed; found {topic!r}"
            raise ConfigError(msg)
        address = addresses(f"{topic}: ", servers)
        if not timeout > 0:
            msg = f"{topic}: timeout must be above 0 seconds; found {timeout!r}"
            raise ConfigError(msg)
        if group is not None and (not isinstance(group, str) or not group):
            msg = f"{topic}: group must be a consumer group's name, or None; found {group!r}"
            raise ConfigError(msg)
        self._group, self._claims, self._identity = group, claims, Identity()
        if codec is not None and format is not None:
            msg = f"{topic}: codec= and format= both say how a value is decoded; leave one of them out"
            raise ConfigError(msg)
        self._forms = forms_of(format, VALUE, topic)
        names = _field_names(topic, label, codec, fields)
        follows = _follows(claims)
        self._options = KafkaOptions(
            topic, address, label, codec, names, timeout, _checked(topic, config), None, follows
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields beside the image."""
        return self._options.fields

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.topic!r}, {self._options.servers!r})"

    def _formed(self, image: str | None, members: tuple[str, ...], made: Any) -> Any:
        """The same records with other members; `made` where formats find some of them."""
        if self._options.codec is not None:
            msg = f"{self._options.topic}: codec= and columns= both say how a value is decoded; leave one of them out"
            raise ConfigError(msg)
        full = by_path if VALUE in self._forms else str
        return with_formats(self._giving, self._forms.get, image, members, full, made)

    def _giving(self, image: str | None, members: tuple[str, ...]) -> Any:
        other = copy.copy(self)
        other._options = replace(self._options, label=None, fields=members, asked=Asked(image, members))
        return other

    def without_codec(self) -> Self:
        """The same records, their values as they are: a source that can give members."""
        other = copy.copy(self)
        other._options = replace(self._options, codec=None, label=None, fields=())
        return other

    def where(self, partition: int, position: int) -> str:
        """A record's coordinates as text: `imagenet-train[3]@41872`."""
        return f"{self._options.topic}[{partition}]@{position}"

    def original(self, partition: int, position: int) -> Original | None:
        """The record at an offset in full, with key and headers, read again; None where it is gone.

        Raises SourceUnreachableError after `timeout` seconds of silence.
        """
        return original(self._options, partition, position)

    def _check_made(self) -> None:
        """Raise where a format has nobody who asks for what it finds."""
        if self._forms and self._options.asked is None:
            msg = (
                f"{self._options.topic}: format= is for columns=; found no columns. Give columns=, or codec= in "
                "place of format="
            )
            raise ConfigError(msg)

    def _topic_id(self, known: str) -> str:
        """The topic's id now. It must be the one that the source knew: readers compare what they read with it."""
        asker = Asker(self._options)
        if not known and not asker.answers():
            return ""
        found = asker.ask(self._options.topic) or ""
        before = self._identity.topic_id
        if before and found not in (before, ""):
            raise remade(self._options.topic, before, found)
        return found or known


def _follows(claims: str | os.PathLike[str] | None) -> Follows:
    if claims is None:
        return UNTOLD
    if "://" not in (address := path_of("claims=", claims)):
        return Claims(os.path.abspath(address))
    from dali_feed.external_sources.kafka.remote_claims import RemoteClaims

    return RemoteClaims.under(address)


def _field_names(topic: str, label: str | None, codec: Codec | None, fields: Sequence[str] | None) -> tuple[str, ...]:
    if label is not None and (not isinstance(label, str) or not label):
        msg = f"{topic}: label must be a header's name, or None; found {label!r}"
        raise ConfigError(msg)
    if codec is not None and not callable(codec):
        msg = f"{topic}: codec must be a function of (value, key, headers), or None; found {codec!r}"
        raise ConfigError(msg)
    if codec is None:
        if fields is not None:
            msg = f"{topic}: fields= names what a codec gives; found {fields!r} and no codec; give codec="
            raise ConfigError(msg)
        return () if label is None else (LABEL,)
    if label not in (LABEL, None):
        msg = (
            f"{topic}: label= names a header, but with codec= the codec gives the label; found {label!r}; leave one "
            "of them out"
        )
        raise ConfigError(msg)
    if fields is None:
        return () if label is None else (LABEL,)
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if "image" in names or len(set(names)) != len(names):
        msg = f"{topic}: fields= must be different names, without 'image'; found {names!r}"
        raise ConfigError(msg)
    return names


def _checked(topic: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(config, Mapping | None):
        msg = f"{topic}: config must be a mapping of librdkafka's options, or None; found {type(config).__name__}"
        raise ConfigError(msg)
    taken = sorted(OURS.intersection(config or {}))
    if taken:
        msg = (
            f"{topic}: config= must not set the options that decide which records are read, and in which order; "
            f"found {', '.join(taken)}; the offsets come from the snapshot and the checkpoint"
        )
        raise ConfigError(msg)
    return dict(config or {})

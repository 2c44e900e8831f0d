"""MQTT's words and the engine's: the only file that knows both.

A topic name's first level is the topic, its other levels joined by dots are the tag, and within the
levels of the tag `.` and `/` change places, so the mapping is one-to-one:

    sensors                topic `sensors`, no tag
    sensors/               topic `sensors`, tag ``
    sensors/room1/temp     topic `sensors`, tag `room1.temp`
    sensors/v1.2/temp      topic `sensors`, tag `v1/2.temp`
    /temp                  topic ``,        tag `temp`; tools call that topic `||`

A filter becomes `Address` by the same rule, with `+` as ONE_LEVEL and `#` as REST. With a *fixed
topic* the whole topic name goes into the tag, and filters see that topic only.

A listener may have a *mount point*, a prefix that its clients do not see: it is put before their
topic names and filters, and removed from the topic names that they are sent. It is a part of the
template of a topic and of the topic field of a run, so it costs nothing for each message. A filter
`#` becomes `plant/+/#`, because `plant/#` would match `plant`, too, which is outside.

Other protocols have names that a topic name must not contain. They are escaped on the way out as
`|` and two hex digits, and back on the way in:

* `+` and `#`, and within the topic `/`. A `|` that would look like such an escape becomes `|7c`,
  once more for each `7c` that follows it: so the escaping is one-to-one as well.
* U+0000 and bytes that are not UTF-8: only on the way out, for reading. MQTT cannot publish them.

`$` topics belong to the server (3.1.1 part 4.7.2): clients may subscribe, never publish, but for
`$delayed/{seconds}/{topic}` (`delays.py`), which is not a topic but a time and a topic. What they
publish to `$SYS/...` is dropped, and before MQTT 5 acknowledged, because bridges publish there
(`is_ignored`). These topics are at `$SYS` with a fixed topic as well. A filter
`$share/{ShareName}/{filter}` is not a filter but a name and a filter (5.0 part 4.8.2), in every
version of MQTT; `$queue/{filter}` is one with a name of its own (`topic_filters.QUEUE`).
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Final

from polymq.broker.port import (
    MQTT5_PROPERTY,
    ONE_LEVEL,
    PUBLISHER_PROPERTY,
    REST,
    SERVER_TOPICS,
    TTL_PROPERTY,
    Address,
    BoundedCache,
    BrokerPort,
    Durability,
    Reason,
    Refused,
    RunMeta,
    Template,
    shared_address,
    ttl_property,
)
from polymq.core_log.kernels.batch import EXTRA_BASE64, EXTRA_NONE
from polymq.gateways.mqtt.delays import undelayed
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.fields import decode_topic
from polymq.gateways.mqtt.kernels.codes import (
    EXPIRY_SHIFT,
    FLAG_EXPIRES,
    FLAG_PROPERTIES,
    FLAG_QOS,
    FLAG_QOS_SHIFT,
    FLAG_RETAIN,
    FLAGS_OF_KIND,
)
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.reason_codes import ReasonCode
from polymq.gateways.mqtt.rewriting import Rewriting
from polymq.gateways.mqtt.topic_filters import QUEUE, SHARE, is_shared_filter
from polymq.gateways.mqtt.translating import ORIGIN_PROPERTY

TOPIC_BYTES_MAX: Final = 65_535
"""Of a topic name on the wire: its size is two bytes (3.1.1 part 1.5.3)."""
NO_NAME: Final = "||"
"""A topic name cannot be empty [MQTT-4.7.3-1]; this stands for one that would be."""

CONNECT_REASONS: Final[Mapping[Reason, ReasonCode]] = {
    Reason.NOT_AUTHENTICATED: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    Reason.FORBIDDEN: ReasonCode.NOT_AUTHORIZED,
    Reason.LOCKED: ReasonCode.NOT_AUTHORIZED,
    Reason.BAD_NAME: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.BAD_ARGUMENT: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.TOO_LARGE: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    Reason.LIMIT: ReasonCode.QUOTA_EXCEEDED,
    Reason.BANNED: ReasonCode.BANNED,
    Reason.RATE: ReasonCode.CONNECTION_RATE_EXCEEDED,
    Reason.UNDECIDED: ReasonCode.SERVER_BUSY,
    Reason.READ_ONLY: ReasonCode.SERVER_UNAVAILABLE,
    Reason.STORAGE_FULL: ReasonCode.SERVER_UNAVAILABLE,
    Reason.NOT_FOUND: ReasonCode.SERVER_UNAVAILABLE,
    Reason.DIFFERENT: ReasonCode.SERVER_UNAVAILABLE,
    Reason.IN_USE: ReasonCode.SERVER_UNAVAILABLE,
    Reason.NOT_EMPTY: ReasonCode.SERVER_UNAVAILABLE,
}
"""How a refused CONNECT is answered."""

PUBLISH_REASONS: Final[Mapping[Reason, ReasonCode]] = {
    Reason.NOT_AUTHENTICATED: ReasonCode.NOT_AUTHORIZED,
    Reason.FORBIDDEN: ReasonCode.NOT_AUTHORIZED,
    Reason.LOCKED: ReasonCode.NOT_AUTHORIZED,
    Reason.BAD_NAME: ReasonCode.TOPIC_NAME_INVALID,
    Reason.BAD_ARGUMENT: ReasonCode.IMPLEMENTATION_ERROR,
    Reason.TOO_LARGE: ReasonCode.QUOTA_EXCEEDED,  # PUBACK has no code for what is too large
    Reason.LIMIT: ReasonCode.QUOTA_EXCEEDED,
    Reason.BANNED: ReasonCode.NOT_AUTHORIZED,
    Reason.RATE: ReasonCode.QUOTA_EXCEEDED,
    Reason.UNDECIDED: ReasonCode.IMPLEMENTATION_ERROR,  # nobody can say yet: try later
    Reason.READ_ONLY: ReasonCode.UNSPECIFIED_ERROR,
    Reason.STORAGE_FULL: ReasonCode.QUOTA_EXCEEDED,
    Reason.NOT_FOUND: ReasonCode.UNSPECIFIED_ERROR,
    Reason.DIFFERENT: ReasonCode.UNSPECIFIED_ERROR,
    Reason.IN_USE: ReasonCode.UNSPECIFIED_ERROR,
    Reason.NOT_EMPTY: ReasonCode.UNSPECIFIED_ERROR,
}
"""How a refused PUBLISH of MQTT 5 is answered: 3.1.1 has no answer to it [MQTT-3.3.5-2]."""

SUBSCRIBE_REASONS: Final[Mapping[Reason, ReasonCode]] = {
    **PUBLISH_REASONS,
    Reason.BAD_NAME: ReasonCode.TOPIC_FILTER_INVALID,
    Reason.BAD_ARGUMENT: ReasonCode.TOPIC_FILTER_INVALID,
    Reason.TOO_LARGE: ReasonCode.TOPIC_FILTER_INVALID,
}
"""How a refused filter is answered in MQTT 5; 3.1.1 has one return code for all reasons."""

_CODE: Final = {"+": "|2b", "#": "|23", "/": "|2f", "|": "|7c"}
_CHARACTER: Final = {code: character for character, code in _CODE.items()}
# In a topic `/` is escaped as well; in the levels of a tag it is a dot that changed places.
_TOPIC_ESCAPED: Final = re.compile(r"[+#/]|\|(?=(?:7c)*(?:2b|23|2f))")
_TOPIC_ESCAPES: Final = re.compile(r"\|(?:2b|23|2f)|\|7c(?=(?:7c)*(?:2b|23|2f))")
_TAG_ESCAPED: Final = re.compile(r"[+#]|\|(?=(?:7c)*(?:2b|23))")
_TAG_ESCAPES: Final = re.compile(r"\|(?:2b|23)|\|7c(?=(?:7c)*(?:2b|23))")
_UNSPEAKABLE: Final = re.compile("[\x00\ud800-\udfff]")
_SWAP: Final = str.maketrans("./", "/.")


def _escape(pattern: re.Pattern[str], name: str) -> str:
    escaped = pattern.sub(lambda found: _CODE[found[0]], name)
    return _UNSPEAKABLE.sub(lambda found: f"|{ord(found[0]) & 0xFF:02x}", escaped)


def _unescape(pattern: re.Pattern[str], name: str) -> str:
    if "|" not in name:
        return name
    return pattern.sub(lambda found: _CHARACTER[found[0]], name)


def is_ignored(topic: bytes) -> bool:
    """Whether what a client publishes to this topic name is acknowledged and dropped.

    A mosquitto bridge says there, by a retained message and by its will, whether it is connected.
    The standard lets a server decide (3.1.1 part 4.7.2); to refuse would keep the bridge out.
    """
    return topic.startswith(b"$SYS/") or topic == b"$SYS"


def split_shared_filter(pattern: str) -> tuple[str, str]:
    """The ShareName and the filter in `$share/{ShareName}/{filter}` or `$queue/{filter}`. Raises
    Refused: BAD_NAME: one is empty, or the name has `+` or `#` [MQTT-4.8.2-1], [MQTT-4.8.2-2]."""
    begin, _, rest = pattern.partition("/")
    name, _, shared = rest.partition("/") if begin == SHARE else (QUEUE, "", rest)
    if not name or "+" in name or "#" in name:
        raise Refused(
            Reason.BAD_NAME,
            "a shared subscription is `$share/{ShareName}/{filter}`; its name has one character or "
            "more, and neither `+` nor `#`",
        )
    if not shared or is_shared_filter(shared):
        raise Refused(Reason.BAD_NAME, "a shared subscription without a topic filter of its own")
    return name, shared


def broker_name(address: Address) -> str:
    """The topic name or filter of an address of the broker as MQTT writes it, without a fixed topic
    or a mount point. No two addresses have the same."""
    wildcards = {ONE_LEVEL: "+", REST: "#"}
    first, *others = address
    levels = [wildcards.get(first) or _escape(_TOPIC_ESCAPED, first)]
    for level in others:
        levels.append(wildcards.get(level) or _escape(_TAG_ESCAPED, level.replace("/", ".")))
    return "/".join(levels) or NO_NAME


def level_text(name: str) -> str:
    """Any name as one level of a topic name that the server makes."""
    return _escape(_TOPIC_ESCAPED, name)


def level_of(text: str) -> str:
    """A level of a topic name or filter, behind the first, as the level of an address."""
    return _unescape(_TAG_ESCAPES, text).replace(".", "/")


NO_REWRITING: Final = Rewriting()
EXCLUSIVE: Final = "$exclusive/"


def without_exclusive(pattern: str) -> tuple[str, bool]:
    """A topic filter, and whether the subscription is to be exclusive: `$exclusive/{filter}`, as
    EMQX has it. Raises Refused: BAD_NAME."""
    if not pattern.startswith(EXCLUSIVE):
        return pattern, False
    inner = pattern[len(EXCLUSIVE) :]
    if not inner or inner.startswith(EXCLUSIVE) or is_shared_filter(inner):
        raise Refused(
            Reason.BAD_NAME, "an exclusive subscription is to $exclusive/ and an ordinary filter"
        )
    return inner, True


_Templates = tuple[BoundedCache[bytes, Template], ...]
"""Templates by raw topic name, a table for each kind of message (`FLAGS_OF_KIND`). Of messages that
expire, the key is the name and four bytes of expiry interval."""
EVICTED_AT_ONCE: Final = 64
"""Templates that give way to one new: many short names may be as long as one."""
_NO_TEMPLATES: Final[_Templates] = (BoundedCache(0),) * (FLAGS_OF_KIND + 1)
"""Those of a client that has published nothing yet: most clients of a fleet, most of the time."""


def template_key(topic: bytes, flags: int) -> bytes:
    """Where in its table the template of such a message is."""
    if not flags & FLAG_EXPIRES:
        return topic
    return topic + (flags >> EXPIRY_SHIFT & 0xFFFF_FFFF).to_bytes(4, "big")


class TopicMapping:
    """Topic names and filters of one listener, and the templates of what is published to it.

    Args:
        fixed_topic: the topic that all topic names of this listener are tags of, or None.
        mount_point: the prefix of all topic names, which ends with `/`, or empty.
        rewriting: where clients publish and subscribe instead of where they ask for.
    """

    def __init__(
        self,
        *,
        port: BrokerPort,
        limits: Limits,
        fixed_topic: str | None,
        mount_point: str = "",
        rewriting: Rewriting = NO_REWRITING,
    ) -> None:
        self._port = port
        self._rewriting = rewriting
        self._limits = limits
        self._fixed_topic = fixed_topic
        self._mount_point = mount_point
        self._levels_max = limits.topic_levels_max - mount_point.count("/")
        self._from: str | None = None
        """The client whose messages name it."""
        self.templates = _NO_TEMPLATES
        """Those that were made so far; maybe not valid any more."""
        self._template_count = 0
        self._template_bytes = 0  # of their keys
        name = "mqtt" if fixed_topic is None else f"mqtt {fixed_topic}"
        if mount_point:
            name = f"{name} below {mount_point}"
        self.field_key = f"{name} topic"
        """Where `topic_field` keeps its answer (`RunMeta.cache`)."""
        self.encoded_keys = (f"{name} 0", f"{name} 1")
        """Keys of QoS 0 frames shared by subscribers, by RETAIN (`RecordRun.encoded`)."""
        self.encoded_keys_5 = (f"{name} 5 0", f"{name} 5 1")
        """The same of MQTT 5."""

    def changed(self, limits: Limits, rewriting: Rewriting) -> TopicMapping:
        """The same names with other limits, and other rules of rewriting."""
        other = self._copy(self._port, self._from)
        other._rewriting = rewriting
        other._limits = limits
        other._levels_max = limits.topic_levels_max - self._mount_point.count("/")
        return other

    def of(self, port: BrokerPort, client_id: str = "", user: str = "") -> TopicMapping:
        """The same names over another port: what its client may publish is its own table. So it is
        where names are rewritten with the client's."""
        if self._rewriting.names_client:
            other = self._copy(port, self._from)
            other._rewriting = self._rewriting.for_client(client_id, user)
            return other
        if port is self._port:
            return self
        return self._copy(port, self._from)

    def naming(self, client_id: str) -> TopicMapping:
        """The same for a client whose messages name it, so that they do not come back to it
        (No Local)."""
        return self._copy(self._port, client_id)

    def _copy(self, port: BrokerPort, publisher: str | None) -> TopicMapping:
        other = copy.copy(self)
        other._port = port
        other._from = publisher
        other.templates = _NO_TEMPLATES
        other._template_count = other._template_bytes = 0
        return other

    # --- publishing -------------------------------------------------------------------------

    def template(self, topic: bytes, flags: int) -> Template:
        """How to store what is published to the raw topic name with these FLAGS; of a topic name
        that asks for a delay: what is stored when that is over.

        Raises:
            RemoteProtocolError: not a topic name.
            Refused: nobody may publish there, or a limit is reached.
        """
        template = self.templates[flags & FLAGS_OF_KIND].get(template_key(topic, flags))
        if template is None or not template.valid:
            template = self._remember(topic, flags)
        return template

    def _remember(self, topic: bytes, flags: int) -> Template:
        self._check_offered(flags)
        name = self.publishable(undelayed(decode_topic(topic)))
        template = self._make_template(name, flags)
        if self.templates is _NO_TEMPLATES:
            count_max = self._limits.templates_max
            self.templates = tuple(BoundedCache(count_max) for _ in _NO_TEMPLATES)
        table = self.templates[flags & FLAGS_OF_KIND]
        key = template_key(topic, flags)
        if key not in table:
            self._template_count += 1
            self._template_bytes += len(key)
            self._make_room(table)
        table.add(key, template)
        return template

    def _make_room(self, table: BoundedCache[bytes, Template]) -> None:
        """Forget the oldest templates, of the table first, as far as there are too many: by their
        number, or by the bytes of their topic names."""
        limits = self._limits
        for _ in range(EVICTED_AT_ONCE):
            is_full = self._template_bytes > limits.template_names_bytes_max
            if not is_full and self._template_count <= limits.templates_max:
                return
            fullest = table or max(self.templates, key=len)
            if not fullest:
                return  # one name alone
            key, _ = fullest.popitem(last=False)
            self._template_count -= 1
            self._template_bytes -= len(key)

    def _check_offered(self, flags: int) -> None:
        """Whether messages of this kind may be published on this listener at all."""
        features = self._limits.features
        if (flags & FLAG_QOS) >> FLAG_QOS_SHIFT > features.qos_max:
            raise RemoteProtocolError(
                "MQTT-3.2.2-11",
                f"a PUBLISH has a QoS above {features.qos_max}, which is the Maximum QoS here",
                ReasonCode.QOS_NOT_SUPPORTED,
            )
        if flags & FLAG_RETAIN and not features.retain:
            raise RemoteProtocolError(
                "MQTT-3.2.2-14",
                "a PUBLISH has RETAIN, and messages are not retained here",
                ReasonCode.RETAIN_NOT_SUPPORTED,
            )

    def publishable(self, name: str) -> str:
        """Where what a client publishes to this topic name goes, if it may go anywhere at all.
        Raises Refused."""
        name = self._rewriting.topic(name)
        if not 0 < len(name.encode()) <= TOPIC_BYTES_MAX:
            raise Refused(Reason.BAD_NAME, "it is rewritten to a name that is empty or too long")
        if name.startswith("$"):
            raise Refused(Reason.FORBIDDEN, "topics that begin with `$` belong to the server")
        self._check_levels(name)
        return name

    def published_to(self, topic: bytes) -> tuple[str, str | None]:
        """Topic and tag of what is published to a raw topic name. Raises as `template`."""
        return self.topic_and_tag(self.publishable(undelayed(decode_topic(topic))))

    def _check_levels(self, name: str) -> None:
        if name.count("/") >= self._levels_max:
            raise Refused(Reason.BAD_NAME, f"more than {self._levels_max} topic levels")

    def _make_template(self, name: str, flags: int) -> Template:
        qos = (flags & FLAG_QOS) >> FLAG_QOS_SHIFT
        retain = bool(flags & FLAG_RETAIN)
        has_block = bool(flags & FLAG_PROPERTIES)
        properties = {ORIGIN_PROPERTY: "mqtt5" if has_block else "mqtt", "PMQ_QOS": str(qos)}
        if retain:
            properties["PMQ_RETAIN"] = "1"
        if flags & FLAG_EXPIRES:
            seconds = flags >> EXPIRY_SHIFT & 0xFFFF_FFFF
            properties[TTL_PROPERTY] = ttl_property(1000 * seconds, 0)
        if self._from is not None:
            properties[PUBLISHER_PROPERTY] = self._from
        return self._port.topics.template(
            self._port.topics.route(*self.topic_and_tag(name)),
            properties=properties,
            extra_kind=EXTRA_BASE64 if has_block else EXTRA_NONE,
            extra_name=MQTT5_PROPERTY if has_block else "",
            extra_keyed=False,
            durability=Durability.FLUSHED if qos else Durability.APPENDED,
            retain=retain,
        )

    def topic_and_tag(self, name: str) -> tuple[str, str | None]:
        """Topic and tag of a client's topic name."""
        name = self._mount_point + name
        if self._fixed_topic is not None:
            return self._fixed_topic, _unescape(_TAG_ESCAPES, name).translate(_SWAP)
        topic, separator, rest = name.partition("/")
        tag = _unescape(_TAG_ESCAPES, rest).translate(_SWAP) if separator else None
        return _unescape(_TOPIC_ESCAPES, topic), tag

    # --- subscribing ------------------------------------------------------------------------

    def address(self, pattern: str) -> Address:
        """A topic filter as the engine's pattern, or as its address of a shared subscription.

        Raises:
            Refused: BAD_NAME: too many levels, or a shared subscription without a name or filter.
        """
        pattern, _ = without_exclusive(pattern)
        if not is_shared_filter(pattern):
            return self._pattern(pattern)
        name, shared = split_shared_filter(pattern)
        return shared_address(name, self._pattern(shared))

    def _pattern(self, pattern: str) -> Address:
        try:
            pattern = self._rewriting.filter(pattern)
        except ValueError as error:
            raise Refused(Reason.BAD_NAME, f"rewritten to what is no filter: {error}") from error
        if is_shared_filter(pattern):
            raise Refused(Reason.BAD_NAME, "rewritten to a shared subscription")
        self._check_levels(pattern)
        levels = self.mounted(pattern).split("/")
        address: list[str] = []
        if self._fixed_topic is not None and levels[0] not in SERVER_TOPICS:
            address.append(self._fixed_topic)
        elif levels[0] not in ("+", "#"):
            address.append(_unescape(_TOPIC_ESCAPES, levels.pop(0)))
        wildcards = {"+": ONE_LEVEL, "#": REST}
        for level in levels:
            address.append(wildcards.get(level) or level_of(level))
        return tuple(address)

    def mounted(self, pattern: str) -> str:
        """A client's filter with the mount point of its listener, but not before the server's
        topics."""
        if not self._mount_point:
            return pattern
        if pattern.startswith("$"):
            return pattern
        return self._mount_point + ("+/#" if pattern == "#" else pattern)

    # --- delivering -------------------------------------------------------------------------

    def topic_field(self, meta: RunMeta) -> bytes:
        """The topic name of a message, as the field of a PUBLISH packet: two bytes of size first.

        A name that is longer than MQTT's becomes `|h` and a hash, as topics do in the log.
        """
        cached: bytes | None = meta.cache.get(self.field_key)
        if cached is not None:
            return cached
        raw = self.name(meta.topic, meta.tag).removeprefix(self._mount_point).encode("utf-8")
        if len(raw) > TOPIC_BYTES_MAX:
            raw = b"|h" + hashlib.sha256(raw).hexdigest().encode("ascii")
        field = len(raw).to_bytes(2, "big") + raw
        meta.cache[self.field_key] = field
        return field

    def name(self, topic: str, tag: str | None) -> str:
        """The topic name of (topic, tag), with its mount point: the inverse of
        `topic_and_tag`."""
        rest = None if tag is None else _escape(_TAG_ESCAPED, tag.translate(_SWAP))
        if topic == self._fixed_topic:
            return rest or NO_NAME
        first = _escape(_TOPIC_ESCAPED, topic)
        return (first or NO_NAME) if rest is None else f"{first}/{rest}"

"""Kinds of values that settings have, and what every section of the configuration has in common."""

from __future__ import annotations

import enum
import re
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

T = TypeVar("T")


class Reload(enum.Enum):
    """What a reload does with a setting that has changed. The values are for documentation."""

    AT_ONCE = "yes"
    """It applies at once, to open connections as well."""
    NEW_CONNECTIONS = "new connections"
    """It applies to connections that are opened from then on. Open ones keep what they were told
    when they connected."""
    RESTART = "restart"
    """It applies after a restart of the server."""
    SINK = "not used by the server"
    """Only `polymq sink` reads it, when it starts."""


Live = Annotated[T, Reload.AT_ONCE]
Fresh = Annotated[T, Reload.NEW_CONNECTIONS]
"""Marks of settings: `connections_max: Live[int]`. A setting without a mark is what its section
says."""

PortNumber = Annotated[int, Field(ge=0, le=65_535)]
PositiveInt = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Network = IPvAnyNetwork


def _checked_path(path: str) -> str:
    if re.fullmatch(r"/[!-~]*", path) is None or {"?", "#"} & set(path):
        raise ValueError("the path of a URL begins with /, and has no blanks, ? or #")
    return path


def is_origin(text: str) -> bool:
    """Whether this is what a browser sends as the origin of a page (RFC 6454)."""
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#]+|null", text) is not None


def _checked_origin(origin: str) -> str:
    if not is_origin(origin):
        raise ValueError("an origin is SCHEME://HOST or SCHEME://HOST:PORT, with nothing behind it")
    return origin


UrlPath = Annotated[str, AfterValidator(_checked_path)]
Origin = Annotated[str, AfterValidator(_checked_origin)]


def _kinds(annotation: Any) -> set[Any]:
    """What a value may be, however it is written: `int | None` and `Annotated[int, ...]` are."""
    parts = get_args(annotation)
    return {annotation}.union(*map(_kinds, parts)) if parts else {annotation}


class Section(BaseModel):
    """A table of the file. Frozen: a reload makes another one.

    Numbers may come as text, because options and variables are text. But true is none, though it is
    1 in Python.
    """

    unmarked: ClassVar[Reload] = Reload.RESTART
    """What a reload does with settings that are not marked."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("a number is wanted, not true or false")
        return value


def reload_of(section: type[Section], field: FieldInfo) -> Reload:
    """What a reload does with a setting of this section."""
    marks = [mark for mark in field.metadata if isinstance(mark, Reload)]
    return marks[0] if marks else section.unmarked


PlainPort = Annotated[
    PortNumber, Field(description="The port without TLS. 0: the system chooses a free port.")
]
TlsPort = Annotated[
    PortNumber,
    Field(description="The port with TLS. It is opened if there is a certificate (`[tls]`)."),
]
ConnectionsMax = Annotated[
    PositiveInt,
    Field(
        description="How many connections there may be at a time. Further ones are closed at once."
    ),
]


class ListenerSettings(Section):
    """What the listeners for clients have in common."""

    enabled: bool = True
    """Whether to open this listener."""
    port: PlainPort
    tls_port: TlsPort
    plain: bool = True
    """Whether connections without TLS are accepted. False needs a certificate (`[tls]`)."""
    connections_max: Live[ConnectionsMax] = 10_000

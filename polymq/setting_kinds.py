"""Kinds of values that settings have, and what every section of the configuration has in common."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    ValidationInfo,
    field_validator,
)

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
    """A table of the file. Frozen: what was read at the start is what runs.

    Numbers may come as text, because options and variables are text. But true is none, though it is
    1 in Python.
    """

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
    connections_max: ConnectionsMax = 10_000

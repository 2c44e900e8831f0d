"""The OpenAPI document of the admin API, made from the operations and their types.

Descriptions come from the docstrings of the types: the text above `Attributes:` is that of the
type, and the lines below are those of its fields.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from polymq.admin.operations import API_PATH, Given, Group, Operation

OPENAPI_VERSION: Final = "3.1.0"
REF: Final = "#/components/schemas/{name}"
PROBLEM: Final = "Problem"
_PART: Final = re.compile(r"{(\w+)}")
_FIELD: Final = re.compile(r"^(\w+): (.*)$")

ABOUT: Final = """\
What operators see of a PolyMQ broker, and do to it, for all protocols in one place.

A caller is a user of the broker (HTTP Basic) or has the operator's token of this start (Bearer),
which is in the file `admin.token` of the data directory. The right `monitor` is enough for what
changes nothing, `operate` for most that does, and `admin` for users, permissions, topics, backups,
the configuration and the roles of brokers; each includes those before it. The roles `reader`,
`operator` and `admin` have them. What a message contains is for callers who may also subscribe to
its topic.

A POST has to have the content type application/json, or the header X-PolyMQ-Admin, so that no web
page can send it.
"""


def document(groups: Sequence[Group], version: str) -> dict[str, Any]:
    """The document, as a JSON value."""
    types = [kind for group in groups for one in group.operations for kind in _types(one)]
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    for kind in _structs(types):
        name = _schema_name(kind)
        if name in schemas:
            _describe(schemas[name], kind)
    paths: dict[str, dict[str, Any]] = {}
    for group in groups:
        for operation in group.operations:
            at = paths.setdefault(API_PATH + operation.path, {})
            at[operation.method.lower()] = _operation(operation, group, schemas)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "PolyMQ admin API", "version": version, "description": ABOUT},
        "tags": [{"name": group.name, "description": group.about} for group in groups],
        "security": [{"user": []}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas, PROBLEM: _problem()},
            "securitySchemes": {
                "user": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def descriptions(kind: type) -> tuple[str, dict[str, str]]:
    """What the docstring of a type says of it, and of its fields."""
    about: list[str] = []
    fields: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not (issubclass(base, msgspec.Struct) and base.__doc__ and base is not msgspec.Struct):
            continue
        head, _, attributes = inspect.cleandoc(base.__doc__).partition("Attributes:\n")
        about = [head.strip()]
        name = ""
        for line in inspect.cleandoc(attributes).splitlines():
            found = _FIELD.match(line)
            if found is not None:
                name, fields[found[1]] = found[1], found[2]
            elif name:
                fields[name] += " " + line.strip()
    return " ".join(" ".join(about).split()), fields


def _types(operation: Operation) -> Iterator[Any]:
    yield operation.query
    if operation.body is not None:
        yield operation.body
    if operation.answer is not None:
        yield operation.answer


def _structs(types: Iterable[Any]) -> Iterator[type]:
    """All structs that these types are made of."""
    seen: set[Any] = set()
    waiting = [msgspec.inspect.type_info(kind) for kind in types]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            key = _schema_name(info.cls)
            if key in seen:
                continue
            seen.add(key)
            yield info.cls
            waiting += [field.type for field in info.fields]
        for name in ("item_type", "key_type", "value_type"):
            inner = getattr(info, name, None)
            if inner is not None:
                waiting.append(inner)
        waiting += getattr(info, "item_types", ()) or ()
        waiting += getattr(info, "types", ()) or ()


def _schema_name(kind: Any) -> str:
    """As msgspec names it: generic types with their arguments."""
    return re.sub(r"[^a-zA-Z0-9.\-_]", "_", _plain_name(kind))


def _plain_name(kind: Any) -> str:
    arguments = getattr(kind, "__args__", ())
    name: str = getattr(kind, "__origin__", kind).__name__
    return f"{name}[{', '.join(map(_plain_name, arguments))}]" if arguments else name


def _describe(schema: dict[str, Any], kind: Any) -> None:
    about, fields = descriptions(getattr(kind, "__origin__", kind))
    schema["description"] = about
    schema.pop("title", None)
    for name, value in schema.get("properties", {}).items():
        if name in fields:
            value["description"] = fields[name]


def _operation(operation: Operation, group: Group, schemas: Mapping[str, Any]) -> dict[str, Any]:
    text = f"{operation.about} Needs the right `{operation.right}`.".strip()
    made: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [group.name],
        "summary": operation.summary,
        "description": text,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation.query, schemas)],
        "responses": {
            **_good_answer(operation),
            "default": {
                "description": "The request was refused, or failed.",
                "content": {"application/problem+json": {"schema": _ref(PROBLEM)}},
            },
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": _ref(_schema_name(operation.body))}}
        made["requestBody"] = {"content": content}
    return made


def _good_answer(operation: Operation) -> dict[str, Any]:
    if operation.answer is None and operation.media_type == "application/json":
        return {"204": {"description": "It is done."}}
    schema: dict[str, Any] = {}
    if operation.answer is not None:
        (schema,), _ = msgspec.json.schema_components([operation.answer], ref_template=REF)
    content = {operation.media_type: {"schema": schema}}
    answers = {str(operation.status): {"description": operation.summary, "content": content}}
    if operation.may_make:
        answers["201"] = {"description": "It was not there, and is made.", "content": content}
    return answers


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": operation.path_about.get(name, ""),
            "schema": {"type": "string"},
        }
        for name in _PART.findall(operation.path)
    ]


def _query_parameters(kind: type[Given], schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    schema = schemas[_schema_name(kind)]
    required = schema.get("required", ())
    parameters = []
    for name, value in schema.get("properties", {}).items():
        about = value.get("description", "")
        shown = {key: one for key, one in value.items() if key != "description"}
        parameters.append(
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": about,
                "schema": shown,
            }
        )
    return parameters


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name=name)}


def _problem() -> dict[str, Any]:
    return {
        "description": "Why a request was refused (RFC 9457).",
        "type": "object",
        "properties": {"status": {"type": "integer"}, "detail": {"type": "string"}},
        "required": ["status", "detail"],
    }

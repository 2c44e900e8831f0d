"""Settings without their secrets, and texts in which no secret of the settings is left.

Two rules, each enough by itself. A setting that is a secret is hidden by its kind or its name,
whatever its value. And what such settings say, or the files that they name, is removed from every
text that leaves the machine, wherever it stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from polymq.admin.operator_token import read_token
from polymq.secret_names import HIDDEN, SECRET_NAMES
from polymq.setting_kinds import Section
from polymq.settings import Settings

SECRET_FILES: Final = re.compile(r"(^key|_key|_file)$")
"""Settings that name files with secrets. Some name other files; what is in those is hidden too."""
FILE_BYTES_MAX: Final = 64 * 1024
"""Of a file with secrets, of which no more is looked for."""
REMOVED_MIN: Final = 4
"""Characters of what is removed from texts. With less, the texts would be unreadable."""
WORD_MIN: Final = 12
"""Characters of a word in a file with secrets that is removed without the rest of its line."""
_HEADING: Final = re.compile(r"-----.*-----")


def without_secrets(settings: Settings) -> Settings:
    """The settings, with `(hidden)` where a secret was. They are to be read, not to be used."""
    hidden: Settings = _without(settings)
    return hidden


def _without(section: Any) -> Any:
    changed = {name: _shown(name, getattr(section, name)) for name in type(section).model_fields}
    return section.model_copy(update=changed)


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Section):
        return _without(value)
    if isinstance(value, list):
        return [_shown(name, item) for item in value]
    if isinstance(value, SecretStr):
        return SecretStr(HIDDEN) if value.get_secret_value() else value
    if not isinstance(value, str) or not value:
        return value
    if SECRET_NAMES.search(name):
        return HIDDEN
    before, question, _ = value.partition("?")
    return f"{before}?{HIDDEN}" if question and "://" in before else value


class Remover:
    """Removes all secrets from texts.

    Args:
        secrets: what is not to be left. Strings that are shorter than `REMOVED_MIN` do not count.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        found = sorted({one for one in secrets if len(one) >= REMOVED_MIN}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None

    def __call__(self, text: str) -> str:
        """The text without them."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)


def remover_for(settings: Settings) -> Remover:
    """One for the secrets of these settings, of the files that they name as far as they can be
    read, and for the operator's token."""
    token = read_token(settings.server.data_directory)
    return Remover([*_secrets("", settings), *([] if token is None else [token])])


def _secrets(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Section):
        for key in type(value).model_fields:
            yield from _secrets(key, getattr(value, key))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(name, item)
    elif isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str) and value:
        if SECRET_NAMES.search(name):
            yield value
        elif SECRET_FILES.search(name):
            yield from _lines_of(value)
        elif "://" in value:
            yield from (part for pair in parse_qsl(urlsplit(value).query) for part in pair[1:])


def _lines_of(path: str) -> Iterator[str]:
    """The lines of a file, without those that say what kind of key follows, and their long words:
    of a header, what is behind `Authorization: Bearer` is the secret."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            text = file.read(FILE_BYTES_MAX)
    except OSError:
        return  # what we cannot read we cannot have written anywhere
    for line in map(str.strip, text.splitlines()):
        if not _HEADING.fullmatch(line):
            yield line
            yield from (word for word in line.split() if len(word) >= WORD_MIN)

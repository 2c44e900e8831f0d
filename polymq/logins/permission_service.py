"""Asks an HTTP service about permissions: `PermissionService` (`permission_answers.py`,
`asked_http.py`)."""

from __future__ import annotations

from polymq.asked_settings import PermissionServiceSettings
from polymq.broker.accounts.permission_answers import PermissionQuestion, parse_permission
from polymq.broker.accounts.service_answers import Result
from polymq.logins.asked_http import HttpService


class HttpPermissionService(HttpService[PermissionQuestion, Result]):
    """See the head of this file. Raises Failure: USAGE, a file of the settings cannot be used."""

    def __init__(self, settings: PermissionServiceSettings) -> None:
        super().__init__(
            settings, "permission_service", lambda content, _question: parse_permission(content)
        )

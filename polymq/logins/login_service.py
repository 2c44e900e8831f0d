"""Asks an HTTP service about logins: `LoginService` (`login_answers.py`, `asked_http.py`)."""

from __future__ import annotations

from polymq.broker.accounts.login_answers import Question, Verdict, parse_answer
from polymq.login_settings import LoginServiceSettings
from polymq.logins.asked_http import HttpService


class HttpLoginService(HttpService[Question, Verdict]):
    """See the head of this file. Raises Failure: USAGE, a file of the settings cannot be used."""

    def __init__(self, settings: LoginServiceSettings) -> None:
        super().__init__(
            settings,
            "login_service",
            lambda content, question: parse_answer(content, question.user),
        )

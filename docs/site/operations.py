"""How each operation of the admin API is reached: by which command, and on which screen of the
console. `docs/admin-api.md` shows it, and tests go through every cell.

A cell in parentheses is a reason: nothing of that kind sends the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Reached:
    """The two cells of an operation. Several of one kind are separated by commas.

    Attributes:
        command: the words behind `polymq`, or a reason in parentheses.
        console: the screen and the button, or a reason in parentheses.
    """

    command: str
    console: str


def is_reason(cell: str) -> bool:
    """Whether a cell says why there is nothing."""
    return cell.startswith("(")


TAKING: Final = "(the files are copied at the broker's machine)"

REACHED: Final = {
    "GET /caller": Reached("user whoami", "Login: Log in"),
    "GET /broker": Reached("broker show", "Overview"),
    "GET /topics": Reached("topic list", "Topics"),
    "GET /topics/{name}": Reached("topic show", "Topics, one topic"),
    "PUT /topics/{name}": Reached("topic create", "Topics: New topic"),
    "PATCH /topics/{name}": Reached("topic set", "Topics, one topic: Change settings"),
    "DELETE /topics/{name}": Reached("topic delete", "Topics, one topic: Delete"),
    "GET /topics/{name}/records": Reached(
        "message find", "(messages as JSON: Topics, one topic, Messages)"
    ),
    "GET /records/{position}": Reached(
        "message show", "(messages as JSON: Retained messages, one topic)"
    ),
    "GET /topics/{name}/messages": Reached("message list", "Topics, one topic, Messages"),
    "POST /topics/{name}/messages": Reached(
        "(`polymq message publish` publishes over HTTP, as clients do)",
        "Topics, one topic, Messages: Publish",
    ),
    "GET /messages/{position}": Reached(
        "(`polymq message show` gets the record)", "Retained messages, one topic"
    ),
    "GET /queues/{name}/messages": Reached("message peek", "Queues, one queue, Messages"),
    "GET /messages/{position}/way": Reached("message way", "Topics, one topic, Messages: Way"),
    "GET /queues": Reached("queue list", "Queues"),
    "GET /queues/{name}": Reached("queue show", "Queues, one queue"),
    "PUT /queues/{name}": Reached("queue create", "Queues: New queue"),
    "POST /queues/{name}/bind": Reached("queue bind", "Queues, one queue: Bind"),
    "POST /queues/{name}/unbind": Reached("queue unbind", "Queues, one queue: Unbind"),
    "DELETE /queues/{name}": Reached("queue delete", "Queues, one queue: Delete"),
    "POST /queues/{name}/purge": Reached("queue purge", "Queues, one queue: Purge"),
    "POST /queues/{name}/pause": Reached("queue pause", "Queues, one queue: Pause"),
    "POST /queues/{name}/resume": Reached("queue resume", "Queues, one queue: Resume"),
    "POST /queues/{name}/move": Reached("queue move", "Queues, one queue: Move"),
    "GET /listeners": Reached("broker listeners", "Connect"),
    "GET /connections": Reached("connection list", "Connections"),
    "GET /connections/{id}": Reached("connection show", "Connections, one connection"),
    "DELETE /connections/{id}": Reached("connection close", "Connections, one connection: Close"),
    "POST /connections/close": Reached("connection close", "Connections: Close several"),
    "GET /consumers": Reached("consumer list", "Consumers"),
    "GET /consumers/{id}": Reached("consumer show", "Consumers, one consumer"),
    "POST /consumers/{id}/reset": Reached(
        "consumer reset", "Consumers, one consumer: Reset, Skip all that waits"
    ),
    "POST /consumers/{id}/pause": Reached("consumer pause", "Consumers, one consumer: Pause"),
    "POST /consumers/{id}/resume": Reached("consumer resume", "Consumers, one consumer: Resume"),
    "GET /dead-letters": Reached("deadletter list", "Dead letters"),
    "GET /dead-letters/{location}": Reached("deadletter show", "Dead letters, one place"),
    "POST /dead-letters/{location}/redrive": Reached(
        "deadletter redrive", "Dead letters, one place: Redrive, Try what a redrive would do"
    ),
    "GET /delayed": Reached("delayed list", "Delayed messages"),
    "DELETE /delayed/{id}": Reached("delayed cancel", "Delayed messages: Discard"),
    "GET /webhooks": Reached("webhook list", "Webhooks"),
    "GET /webhooks/{name}": Reached("webhook show", "Webhooks, one webhook"),
    "POST /webhooks/{name}/pause": Reached("webhook pause", "Webhooks, one webhook: Pause"),
    "POST /webhooks/{name}/resume": Reached("webhook resume", "Webhooks, one webhook: Resume"),
    "POST /webhooks/{name}/try": Reached("webhook try", "Webhooks, one webhook: Try now"),
    "GET /mqtt/clients": Reached("mqtt client list", "MQTT clients"),
    "GET /mqtt/clients/{client_id}": Reached("mqtt client show", "MQTT clients, one client"),
    "DELETE /mqtt/clients/{client_id}": Reached(
        "mqtt client kick", "MQTT clients, one client: Disconnect"
    ),
    "GET /mqtt/sessions": Reached("session list", "MQTT sessions"),
    "GET /mqtt/sessions/{client_id}": Reached("session show", "MQTT sessions, one session"),
    "DELETE /mqtt/sessions/{client_id}": Reached(
        "session delete", "MQTT sessions, one session: Delete"
    ),
    "GET /mqtt/retained": Reached("retained list", "Retained messages"),
    "GET /mqtt/retained/{topic}": Reached(
        "(`polymq retained show` gets the record)", "Retained messages, one topic"
    ),
    "GET /mqtt/retained/{topic}/record": Reached(
        "retained show", "(messages as JSON: Retained messages, one topic)"
    ),
    "POST /mqtt/retained/clear": Reached("retained clear", "Retained messages: Clear"),
    "GET /mqtt/traces": Reached("mqtt trace list", "Traces"),
    "POST /mqtt/traces": Reached("trace", "Traces: Begin"),
    "POST /messages/traces": Reached("trace", "Traces: Begin"),
    "DELETE /mqtt/traces/{number}": Reached("mqtt trace end", "Traces: End"),
    "GET /bans": Reached("ban list", "Ban list"),
    "POST /bans": Reached("ban add", "Ban list: Ban"),
    "DELETE /bans/{kind}/{value}": Reached("ban remove", "Ban list: Remove"),
    "GET /users": Reached("user list", "Users"),
    "GET /users/{name}": Reached("user show", "Users, one user"),
    "PUT /users/{name}": Reached("user add", "Users: New user"),
    "PATCH /users/{name}": Reached(
        "user password, user role, user quota, user disable, user enable",
        "Users, one user: Password, Roles, Quotas, Disable, Enable",
    ),
    "DELETE /users/{name}": Reached("user delete", "Users, one user: Delete"),
    "POST /users/{name}/access-keys": Reached(
        "user access-key add", "Users, one user: New access key"
    ),
    "DELETE /users/{name}/access-keys/{key}": Reached(
        "user access-key remove", "Users, one user: Remove access key"
    ),
    "GET /permissions": Reached("permission list", "Permissions"),
    "POST /permissions": Reached("permission allow, permission deny", "Permissions: New rule"),
    "DELETE /permissions": Reached("permission remove", "Permissions: Remove"),
    "GET /permissions/check": Reached("permission check", "Permissions: Ask"),
    "DELETE /service-answers": Reached(
        "permission forget", "Permissions: Forget answers of services"
    ),
    "GET /store": Reached("store", "Disk and retention"),
    "GET /store/holders": Reached("store holders", "Disk and retention"),
    "GET /backups": Reached("backup status", "Backups"),
    "POST /backups": Reached("backup create", TAKING),
    "PUT /backups/{backup}": Reached("(`polymq backup create` renews what it reserved)", TAKING),
    "POST /backups/{backup}/end": Reached("backup create", TAKING),
    "POST /reload": Reached("reload", "Configuration: Reload"),
    "GET /replication": Reached("broker status", "Replication"),
    "POST /replication/promote": Reached("broker promote", "Replication: Promote"),
    "POST /replication/follow": Reached("broker follow", "Replication: Follow"),
    "GET /name-servers": Reached("broker name-servers", "Replication, name servers"),
    "GET /limits": Reached("broker limits", "Limits"),
    "GET /audit": Reached("audit", "Log"),
    "GET /log": Reached("log", "Log, other lines"),
    "POST /rabbitmq-definitions": Reached(
        "config import rabbitmq-definitions",
        "(the command reads the file, and says what cannot be taken)",
    ),
    "GET /definitions": Reached("definitions export", "Configuration: Export"),
    "POST /definitions": Reached(
        "definitions import", "Configuration: Import, Try what an import would do"
    ),
}
"""Method and path of each operation -> how it is reached."""


def command_cell(cell: str) -> str:
    """A command as the page shows it."""
    return cell if is_reason(cell) else ", ".join(f"`polymq {one}`" for one in cell.split(", "))

"""What one MQTT client may do where no rule speaks of it: a service is asked, topic by topic.

Theory. What a client may do is asked for in the middle of an operation, which cannot wait. So an
operation that needs an answer which is not there ends with `Unanswered`, before it has changed
anything. Whoever began it asks (`Asker.ask`), waits, and begins it again with the answers *in hand*
(`Asker.know`): they count for it even if they are not remembered, because the service has failed,
or the settings say so. So each wait ends, and each operation is tried twice at most.

Rules:

* A rule that denies is enough, and one that allows is enough: the service is asked about the rest.
* Publishing includes to create the topic by it, as with granted permissions (`granting.py`).
* The topics of the server itself (`$SYS`) are not asked about, nor are very long names.
* A client has few questions at a time with the service (`ASKED_AT_ONCE`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from polymq.broker.accounts.permission_answers import PermissionQuestion
from polymq.broker.accounts.permissions import Action
from polymq.broker.accounts.service_permissions import (
    TOPIC_BYTES_MAX,
    Said,
    ServicePermissions,
    TopicAnswer,
)
from polymq.broker.errors import Reason, Refused, Unanswered
from polymq.broker.names import SERVER_TOPICS
from polymq.broker.port.principals import AskedAs
from polymq.broker.port.values import Address

ASKED_AT_ONCE: Final = 8
"""Questions of one client that are asked at a time: what else it wants to know waits, and takes
no room from others."""
_NOT_KNOWN: Final = "the permission service did not decide: try again in a moment"
_ACTIONS: Final[Mapping[Action, str]] = {
    Action.PUBLISH: "publish",
    Action.CREATE: "publish",
    Action.SUBSCRIBE: "subscribe",
}

Wanted = PermissionQuestion
Answers = dict[Wanted, TopicAnswer]
NO_ANSWERS: Final[Mapping[Wanted, TopicAnswer]] = {}


class Asker:
    """Asks for one client."""

    __slots__ = ("_client", "_in_hand", "_service")

    def __init__(self, service: ServicePermissions, client: AskedAs) -> None:
        self._service = service
        self._client = client
        self._in_hand = NO_ANSWERS

    def wanted(self, action: Action, address: Address) -> Wanted | None:
        """What the service has to be asked; None: nothing, and it is refused."""
        named = _ACTIONS.get(action)
        if named is None or address[0] in SERVER_TOPICS:
            return None
        topic = self._client.name_of(address)
        if len(topic.encode("utf-8", "surrogatepass")) > TOPIC_BYTES_MAX:
            return None
        return PermissionQuestion(client=self._client, action=named, topic=topic)

    def until(self, action: Action, address: Address) -> float | None:
        """Until when the service allows it; None: it does not.

        Raises:
            Unanswered: it has to be asked.
            Refused: UNDECIDED, it was asked and has not said it.
        """
        wanted = self.wanted(action, address)
        if wanted is None:
            return None
        answer = self._in_hand.get(wanted) or self._service.find(wanted)
        if answer is None:
            raise Unanswered(wanted, _NOT_KNOWN)
        if answer.said is Said.UNKNOWN:
            raise Refused(Reason.UNDECIDED, _NOT_KNOWN)
        if answer.said is not Said.ALLOWED:
            return None
        # In hand, and dropped meanwhile: it counts for this operation, and no longer.
        return answer.until if answer.generation == self._service.generation else 0.0

    def counts_still(self, until: float, generation: int) -> bool:
        """Whether a permission that was given until then may still be used."""
        return self._service.counts_still(until, generation)

    @property
    def generation(self) -> int:
        """See `ServiceCalls`."""
        return self._service.generation

    def know(self, answers: Mapping[Wanted, TopicAnswer] | None) -> Mapping[Wanted, TopicAnswer]:
        """From now on these are in hand; None: none. Returns those that were."""
        before = self._in_hand
        self._in_hand = NO_ANSWERS if answers is None else answers
        return before

    def ask(
        self, wanted: Iterable[Wanted], answered: Callable[[Answers], None]
    ) -> Callable[[], None]:
        """Ask for all of this. `answered` is called once, maybe in this call, unless what is
        returned is called before."""
        asking = _Asking(self._service, wanted, answered)
        asking.go_on()
        return asking.end


class _Asking:
    """Several questions of one client, and what waits for their answers."""

    __slots__ = ("_answered", "_answers", "_left", "_pending", "_service", "_starting")

    def __init__(
        self,
        service: ServicePermissions,
        wanted: Iterable[Wanted],
        answered: Callable[[Answers], None],
    ) -> None:
        self._service = service
        self._left = deque(dict.fromkeys(wanted))
        self._answered: Callable[[Answers], None] | None = answered
        self._answers: Answers = {}
        self._pending: dict[Wanted, Callable[[], None]] = {}
        self._starting = False

    def go_on(self) -> None:
        """Ask as much as may be asked at a time. Tell if all is known."""
        if self._starting:
            return  # an answer that came in the call that asked
        self._starting = True
        while self._left and len(self._pending) < ASKED_AT_ONCE and self._answered is not None:
            one = self._left.popleft()
            known = self._service.find(one)
            if known is not None:
                self._answers[one] = known
                continue
            self._pending[one] = _nothing
            client = one.client
            withdraw = self._service.begin(
                one, client.user, client.address, partial(self._known, one)
            )
            if one in self._pending:
                self._pending[one] = withdraw
        self._starting = False
        if not self._left and not self._pending:
            answered, self._answered = self._answered, None
            if answered is not None:
                answered(self._answers)

    def _known(self, one: Wanted, answer: TopicAnswer) -> None:
        if self._pending.pop(one, None) is not None:
            self._answers[one] = answer
            self.go_on()

    def end(self) -> None:
        """Nobody waits any more."""
        self._answered = None
        self._left.clear()
        pending, self._pending = self._pending, {}
        for withdraw in pending.values():
            withdraw()


def _nothing() -> None:
    """It is being asked."""

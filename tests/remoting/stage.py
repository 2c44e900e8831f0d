"""Operations beside each other on a `World`, in a time that only the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from polymq.remoting.errors import CallFailed
from polymq.remoting.steps import Call, Fetch, Invoke, Pause, Start, Step, Steps
from tests.remoting.scripted import World

HELD = object()
"""As the result of a function: it has not returned yet. As the answer of a broker: there is none
yet."""


@dataclass(slots=True, eq=False)
class Running:
    """One operation, and the step that it waits for."""

    steps: Steps[object]
    step: Step | None = None
    due: float = 0.0
    ended: bool = False
    result: object = None


@dataclass(slots=True)
class Stage:
    """Carries operations out until all of them wait.

    Attributes:
        held: functions that have not returned.
    """

    world: World
    all: list[Running] = field(default_factory=list)

    def start(self, steps: Steps[object]) -> Running:
        """One more; it runs until it waits."""
        running = Running(steps)
        self.all.append(running)
        self._go(running, lambda: next(steps))
        self.settle()
        return running

    @property
    def held(self) -> list[Invoke]:
        return [running.step for running in self.all if isinstance(running.step, Invoke)]

    def let_return(self, invoke: Invoke, failure: Exception | None = None) -> None:
        """A function that was held returns, or raises."""
        (running,) = [running for running in self.all if running.step is invoke]
        invoke.result, invoke.failure = None, failure
        self._send(running)
        self.settle()

    def answer_held(self) -> None:
        """Brokers have more to say about the calls that they hold."""
        for running in list(self.all):
            if isinstance(running.step, Call):
                go = self._carry_out(running, running.step)
                if go is not None:
                    self._go(running, go)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        """Everything that is due meanwhile happens at its time."""
        end = self.world.now + seconds
        while True:
            due = [r for r in self.all if isinstance(r.step, Pause) and r.due <= end]
            if not due:
                break
            first = min(due, key=lambda running: running.due)
            self.world.now = max(self.world.now, first.due)
            self._send(first)
            self.settle()
        self.world.now = end

    def settle(self) -> None:
        """Wake what a signal was given for, until nothing is."""
        while True:
            for running in list(self.all):
                if isinstance(running.step, Pause) and running.step.is_over:
                    self._send(running)
                    break
                if isinstance(running.step, Call) and running.step.is_given_up:
                    self._give_up(running)
                    break
            else:
                return

    def _give_up(self, running: Running) -> None:
        self._go(running, lambda: running.steps.throw(CallFailed("given up")))

    def _send(self, running: Running) -> None:
        self._go(running, lambda: running.steps.send(None))

    def _go(self, running: Running, go: Callable[[], Step]) -> None:
        """Carry out until it waits or ends."""
        following: Callable[[], Step] | None = go
        while following is not None:
            try:
                step = following()
            except StopIteration as stop:
                running.step, running.ended, running.result = None, True, stop.value
                self.all.remove(running)
                return
            following = self._carry_out(running, step)

    def _carry_out(self, running: Running, step: Step) -> Callable[[], Step] | None:
        """What goes on; None: it waits."""
        steps = running.steps
        running.step = step
        if isinstance(step, Pause):
            running.due = self.world.now + step.seconds
            return None
        if isinstance(step, Start):
            self.all.append(other := Running(step.steps))
            self._go(other, lambda: next(other.steps))
        elif isinstance(step, Invoke):
            self.world.answer(step)
            if step.result is HELD:
                return None
        else:
            assert not isinstance(step, Fetch)
            if step.is_given_up:
                return lambda: steps.throw(CallFailed("given up"))
            answer = self.world.answer(step)
            if answer is HELD:
                return None
            if answer is None and not step.oneway:
                return lambda: steps.throw(CallFailed("no answer"))
            return lambda: steps.send(answer)
        return lambda: steps.send(None)

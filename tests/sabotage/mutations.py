"""Mutations: small mistakes that nobody thought of, drawn from the code itself.

Each changes one token of a function: a comparison, a sign, `and` and `or`, a `not`, `min` and
`max`, a number, True and False, or a call that stands alone and is left out. A seed draws some of
them. One that the suites of its file do not notice *survives*: then a test is missing, or the
change means nothing, which `survivors.py` has to say with its reason.

Left out is what changes no behaviour that a test should fix: assertions, texts of errors, types,
and the constants of modules (limits, which are a matter of measuring).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.sabotage.plan import ROOT, Sabotage
from tests.sabotage.survivors import EQUIVALENT

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
NAMES: Final = {"min": "max", "max": "min"}

CORE_LOG: Final = ("tests/core_log", "--ignore-glob=*/test_store_kernels_*")
BROKER: Final = ("tests/broker",)


@dataclass(frozen=True, slots=True)
class Target:
    """A file whose code is changed.

    Attributes:
        tests, crash: what has to notice, as in `Sabotage`.
        functions: only these; empty for all.
    """

    path: str
    tests: tuple[str, ...]
    crash: str = ""
    functions: tuple[str, ...] = ()


CRASH: Final = "--seed 1 --states 1000"
RECOVERY: Final = ("tests/core_log/test_recovery_log.py", "tests/core_log/test_recovery_indexes.py")
TARGETS: Final = (  # what is about the file comes first: one test that notices is enough
    Target("core_log/recovery.py", (*RECOVERY, *CORE_LOG), CRASH),
    Target("core_log/index_recovery.py", (*RECOVERY, *CORE_LOG), CRASH),
    Target("core_log/flusher.py", ("tests/core_log/test_flusher.py", *CORE_LOG), CRASH),
    Target("core_log/segments.py", ("tests/core_log/test_log_deletion.py", *CORE_LOG), CRASH),
    Target("core_log/commit_log.py", ("tests/core_log/test_commit_log.py", *CORE_LOG), CRASH),
    Target("broker/queues/queue.py", ("tests/broker/test_engine_queues.py", *BROKER)),
    Target("broker/queues/cursor.py", ("tests/broker/test_cursor.py", *BROKER)),
    Target(
        "broker/recovery/fold.py",
        ("tests/broker/test_engine_sessions.py", *BROKER, "tests/replication/test_standby.py"),
    ),
    Target("broker/core.py", ("tests/broker/test_engine_queues.py", *BROKER, "tests/durability")),
    Target(
        "broker/queues/store.py",
        ("tests/broker/test_engine_queues.py", *BROKER, "tests/durability"),
    ),
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change.

    Attributes:
        target: where.
        function: the qualified name of the function around it.
        line: its number, for people; lines move.
        old, new: the whole source, before and after.
        old_line, new_line: its lines before and after, for people and `survivors.py`.
    """

    target: Target
    function: str
    line: int
    old: str
    new: str
    old_line: str
    new_line: str

    @property
    def reason(self) -> str:
        """Why no test can notice it; empty if one should."""
        key = (self.target.path, self.function, self.old_line, self.new_line)
        return EQUIVALENT.get(key, "")

    def sabotage(self) -> Sabotage:
        """The same as a sabotage. Its old text is the whole file, so that the place is certain."""
        return Sabotage(
            name=f"{self.target.path}:{self.line} {self.function}: "
            f"`{self.old_line}` -> `{self.new_line}`",
            why="",
            path=self.target.path,
            old=self.old,
            new=self.new,
            tests=self.target.tests,
            crash=self.target.crash,
        )


def draw(count: int, seed: int, root: Path = ROOT) -> list[Mutation]:
    """So many mutations, each once, and the same for the same seed and code."""
    found = [m for target in TARGETS for m in mutations(target, read(root / target.path))]
    return Random(seed).sample(found, min(count, len(found)))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def mutations(target: Target, source: str) -> Iterator[Mutation]:
    """All mutations of a file, in its order."""
    for function, node in functions_of(ast.parse(source), ""):
        if target.functions and function.rpartition(".")[2] not in target.functions:
            continue
        for statement in node.body:
            for number, text in changes(statement):
                yield made(target, function, source, number, text)


def functions_of(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """(qualified name, function), functions within functions not by themselves."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")


def changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """(node, the text that takes its place) of every mutation within a statement."""
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr):
        return
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Call):
            yield node, "pass"
    if isinstance(node, ast.expr):
        for text in replacements(node):
            yield node, text
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from changes(child)


def replacements(node: ast.expr) -> Iterator[str]:
    """What an expression by itself (not its parts) may become."""
    match node:
        case ast.Compare(ops=[*ops]):
            for at, op in enumerate(ops):
                swapped = [*ops[:at], COMPARISONS[type(op)](), *ops[at + 1 :]]
                yield text_of(ast.Compare(node.left, swapped, node.comparators))
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield text_of(ast.BoolOp(other, values))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            if not any(
                isinstance(side, ast.Constant | ast.JoinedStr) and is_text(side)
                for side in (left, right)
            ):
                opposite = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
                yield text_of(ast.BinOp(left, opposite, right))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield text_of(operand)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield text_of(ast.Call(ast.Name(NAMES[name]), node.args, node.keywords))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def text_of(node: ast.expr) -> str:
    """In parentheses where it may stand within another expression."""
    text = ast.unparse(ast.fix_missing_locations(node))
    return text if isinstance(node, ast.Call | ast.Name | ast.Constant) else f"({text})"


def made(
    target: Target, function: str, source: str, node: ast.expr | ast.stmt, text: str
) -> Mutation:
    """The mutation that puts `text` in the place of `node`."""
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    whole = source.encode()
    first, last = starts[node.lineno - 1], starts[node.end_lineno]
    changed = whole[first:start] + text.encode() + whole[end:last]
    return Mutation(
        target=target,
        function=function,
        line=node.lineno,
        old=source,
        new=(whole[:start] + text.encode() + whole[end:]).decode(),
        old_line=" ".join(whole[first:last].decode().split()),
        new_line=" ".join(changed.decode().split()),
    )

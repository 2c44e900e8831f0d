"""The command line, without a server: what a person reads, and how the program ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from polymq import program
from polymq.broker.accounts.quotas import NAMES
from polymq.broker.topics.settings import TopicSettings
from polymq.cli import polymq
from polymq.errors import ExitCode, Failure
from polymq.settings import Settings

SOMEWHERE = ("--broker", "127.0.0.1:1")


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code = program.run(arguments)
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1, output.err
    assert output.err.startswith("polymq: ")
    return code, output.err


def member(group: click.Group, name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name in group.list_commands(click.Context(group)):
        command = member(group, name)
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        else:
            found.append((*path, name))
    return found


def test_a_command_does_not_load_a_server() -> None:
    """Else `polymq topic list` takes as long as the start of a server."""
    loaded = loaded_by(
        "import polymq.commands.client, polymq.commands.users, polymq.commands.broker"
    )
    assert "polymq.admin.client" in loaded
    assert not loaded & {
        "aiohttp",
        "uvloop",
        "polymq.broker.engine",
        "polymq.core_log.store",
        "polymq.serve",
    }


def loaded_by(program: str) -> set[str]:
    """The modules that a process has when it has run a program."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("POLYMQ_")},
    )
    return set(ended.stdout.split())


def test_a_server_does_not_load_the_commands() -> None:
    """A start takes as long as its imports: what only clients, checks, TLS or rare settings need
    is left out."""
    loaded = loaded_by(
        "import polymq.program, polymq.serve; from polymq.settings import load_settings;"
        " load_settings()"
    )
    assert "polymq.broker.engine" in loaded
    assert not loaded & {
        *(
            "polymq.admin.client",
            "polymq.commands.client",
            "polymq.commands.users",
            "polymq.doctor",
        ),
        *(
            "polymq.remoting.client",
            "polymq.remoting.consumer",
            "polymq.remoting.producer",
            "polymq.remoting.driver_blocking",
        ),
        *("pydantic_settings", "trio", "statistics", "pyarrow", "pyspark"),
    }


def test_a_command_of_another_module_is_found_when_it_is_used() -> None:
    loaded = loaded_by("from polymq.program import run; run(['topic', '--help'])")
    assert "polymq.commands.client" in loaded
    assert not loaded & {"polymq.commands.users", "polymq.commands.sink", "polymq.commands.broker"}


GROUPS = {(), *(path[:-1] for path in commands(polymq) if path)}


@pytest.mark.parametrize("path", commands(polymq), ids=" ".join)
def test_every_command_explains_itself(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The help has a sentence about the command and one about each option, within 100 columns."""
    assert program.run([*path, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Usage: polymq")
    assert lines[2].strip()
    assert max(map(len, lines)) <= 100
    command: click.Command = polymq
    for name in path:
        assert isinstance(command, click.Group)
        command = member(command, name)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize(
    "path",
    [path for path in commands(polymq) if path in GROUPS and path != ("store",)],  # it shows itself
    ids=" ".join,
)
def test_a_command_without_its_subcommand_shows_its_help(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """On lines as in a help that was asked for, with no summary cut at 80 columns; and code 2."""
    assert program.run([*path, "--help"]) == 0
    asked = capsys.readouterr().out
    assert "..." not in asked.partition("Commands:")[2]
    assert program.run(list(path)) == ExitCode.USAGE
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", asked)


def test_the_help_names_all_settings_of_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["topic", "set", "--help"]) == 0
    text = capsys.readouterr().out
    for name in TopicSettings().values():
        assert f"{name}=" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--prot", "1"], "No such option '--prot'"),
        (["serve", "--mqtt-port", "x"], "option: mqtt.port"),
        (["serve", "--mqtt-port", "70000"], "65535"),
        (["serve", "--set", "mqtt.prot=1"], "did you mean mqtt.port?"),
        (["serve", "--set", "mqtt"], "--set takes section.key=value"),
        (["serve", "--set", "sink.topics=[oops"], "is not a JSON list"),
        (["serve", "--config", "none.toml"], "cannot read the configuration none.toml"),
        (["serve", "--set", 'names.servers=["x"]'], "write HOST:PORT"),
        (["serve", "--set", "names.broker=a b"], "names.broker"),
        (["serve", "--set", "rocketmq.advertise=here"], "write HOST:PORT"),
        (["serve", "--set", "mqtt.plain=false"], "set tls.certificate"),
        (["serve", "--set", "tls.certificate=none.pem"], "tls.key is not set"),
        (["serve", "--config", "flat.toml"], "mqtt is a section: write [mqtt]"),
        (["namesrv", "--prot", "1"], "No such option '--prot'"),
        (["namesrv", "--port", "x"], "option: names.port"),
        (["sreve"], "No such command 'sreve'"),
        (["message", "read", "t", "--from", "yesterday"], "use first, next, or an offset"),
        (["user", "quota", "ann", "connections=many"], "write KEY=NUMBER"),
        (["user", "add", "ann", "--password", "secret"], "No such option '--password'"),
        (["user", "add", "ann", "--password-file", "none"], "cannot read the password in none"),
        (["permission", "allow", "ann", "read", "x"], "there is no action 'read'"),
        (["permission", "check", "ann", "read", "x"], "is not one of"),
        (["topic", "list", "--as", "ann", "--as-password-file", "none"], "cannot read"),
        (["sink", *SOMEWHERE, "--topic", "a", "--topic-pattern", "a"], "use one of the two"),
        (["sink", *SOMEWHERE, "--topic-pattern", "("], "is not a regular expression"),
        (
            ["sink", *SOMEWHERE, "--topic", "a", "--exclude-topic", "a"],
            "topic 'a' is named as one to read",
        ),
        (["sink", "--fail-on-data-loss", "maybe"], "is not one of"),
        (["topic", "set", "t"], "Missing argument 'KEY=VALUE...'"),
        (["topic", "set", "t", "retention_seconds"], "write each setting as KEY=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is written: neither a data directory nor an epoch in its log."""
    Path("flat.toml").write_text("mqtt = 1883")
    code, line = failed(arguments, capsys)
    assert code == ExitCode.USAGE
    assert expected in line
    assert [path.name for path in Path().iterdir()] == ["flat.toml"]


def test_a_data_directory_that_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").write_text("mine")
    code, line = failed(["serve"], capsys)
    assert code == ExitCode.CANNOT_CREATE
    assert "the data directory data is a file" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "show", "t"],
        ["topic", "set", "t", "retention_seconds=1"],
        ["message", "publish", "t", "x", "body"],
        ["message", "read", "t"],
        ["user", "list"],
        ["user", "delete", "ann", "--yes"],
        ["permission", "list"],
        ["permission", "check", "ann", "publish", "x"],
        ["store"],
    ],
)
def test_commands_without_a_server_say_so(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ports that nobody listens on: binding them would need privileges.
    for listener in ("ADMIN", "HTTP", "ROCKETMQ"):
        monkeypatch.setenv(f"POLYMQ_{listener}__PORT", "1")
    code, line = failed(arguments, capsys)
    assert code == ExitCode.UNREACHABLE
    assert "no server answers at 127.0.0.1:1 (Connection refused)" in line


@pytest.mark.skipif(find_spec("trio") is None, reason="the name server needs trio")
@pytest.mark.parametrize(
    ("arguments", "expected", "text"),
    [
        (["--host", "192.0.2.1"], ExitCode.CANNOT_LISTEN, "not an address of this machine"),
        (["--data-directory", "/dev/null/x"], ExitCode.CANNOT_CREATE, "/dev/null/x"),
        (["--ready-file", "/dev/null/x", "--port", "0"], ExitCode.USAGE, "no directory /dev/null"),
    ],
)
def test_a_name_server_that_cannot_start_says_why(
    arguments: list[str], expected: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = failed(["namesrv", *arguments], capsys)
    assert code == expected
    assert text in line


def test_print_config_prints_what_is_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["serve", "--mqtt-port", "1999", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert tomllib.loads(printed)["mqtt"] == {"port": 1999}
    assert "#connections_max = " in printed
    Path("polymq.toml").write_text(printed)
    assert program.run(["serve", "--print-config"]) == 0
    assert capsys.readouterr().out == printed


def test_ctrl_c_in_a_command_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polymq.commands.access.find_ports", interrupted)
    assert program.run(["topic", "list"]) == ExitCode.INTERRUPTED
    # The empty line before it ends the terminal's ^C.
    assert capsys.readouterr().err == "\npolymq: interrupted\n"


def test_a_bug_shows_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("somewhere")

    monkeypatch.setattr("polymq.commands.access.find_ports", broken)
    assert program.run(["topic", "list"]) == ExitCode.BUG
    errors = capsys.readouterr().err
    assert "ZeroDivisionError: somewhere" in errors
    assert errors.endswith("polymq: this is a bug; please report the lines above\n")


@pytest.mark.parametrize(
    ("form", "says"),
    [("foo", "it can be 'compiled' or 'pure'"), ("compiled", "are not installed")],
)
def test_kernels_that_are_not_there_are_one_line(form: str, says: str) -> None:
    start = (
        "import importlib.machinery\n"
        "importlib.machinery.EXTENSION_SUFFIXES = []  # as if nothing were compiled\n"
        "from polymq.__main__ import main\n"
        "main(['serve'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", start],
        env={**os.environ, "POLYMQ_KERNELS": form},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.startswith(f"polymq: POLYMQ_KERNELS is {form!r}")
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("polymq ")


def test_exit_codes_are_documented() -> None:
    documentation = Path(__file__).resolve().parents[2] / "docs/configuration.md"
    text = documentation.read_text(encoding="utf-8")
    for code in ExitCode:
        assert f"| {int(code)} |" in text


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> set[str]:
    """The words of a command's help."""
    assert program.run([*command, "--help"]) == 0
    return set(re.findall(r"\w+", capsys.readouterr().out))


def test_the_help_for_quotas_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(NAMES) <= help_of(capsys, "user", "quota")


def test_the_help_of_serve_names_all_ports(capsys: pytest.CaptureFixture[str]) -> None:
    ports = {
        str(port)
        for section in Settings().model_dump().values()
        for key, port in section.items()
        if key == "port" or key.endswith("_port")
    }
    assert len(ports) == 16
    assert ports <= help_of(capsys, "serve")


def test_a_failure_carries_its_code() -> None:
    failure = Failure(ExitCode.IN_USE, "somebody has it")
    assert (failure.code, str(failure)) == (75, "somebody has it")


def test_the_standard_ports_are_those_of_the_protocols() -> None:
    settings = Settings()
    assert (settings.mqtt.port, settings.amqp.port) == (1883, 5672)
    assert settings.rocketmq.port == 10911


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (("a",), None, ("x",), True)),
        (["--topic", "b"], (("b",), None, ("x",), True)),
        (["--topic-pattern", "b.*"], ((), "b.*", ("x",), True)),
        (["--exclude-topic", "y"], (("a",), None, ("y",), True)),
        (["--fail-on-data-loss", "no"], (("a",), None, ("x",), False)),
    ],
)
def test_what_the_sink_is_told_wins_over_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    expected: tuple[object, ...],
) -> None:
    """Topics and pattern together: one of them alone is a choice of its own."""
    reported: list[tuple[object, ...]] = []

    def run_sink(settings: Settings, **chosen: object) -> int:
        names = ("topics", "topic_pattern", "exclude_topics")
        reported.append((*(chosen[name] for name in names), settings.sink.fail_on_data_loss))
        return 0

    monkeypatch.setattr("polymq.commands.sink.run_sink", run_sink)
    config = tmp_path / "polymq.toml"
    config.write_text('[sink]\ntopics = ["a"]\nexclude_topics = ["x"]\n')
    assert program.run(["sink", "--config", str(config), *arguments]) == 0
    assert reported == [expected]


def test_a_damaged_extension_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As is one that was built for an older tree. Another import that fails is a bug."""
    monkeypatch.delenv("POLYMQ_KERNELS", raising=False)
    line = program.why_no_kernels(ImportError("/x/broker/kernels/path.so: file too short"))
    assert line.startswith("the compiled kernels cannot be loaded: install again, or set")
    assert line.endswith("(/x/broker/kernels/path.so: file too short)")
    assert program.why_no_kernels(ImportError("no such module")) == ""

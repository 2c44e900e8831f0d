"""The settings of telemetry: what is refused, and what nobody is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.errors import ExitCode, Failure
from polymq.hiding import remover_for
from polymq.reloading.changes import changes_between
from polymq.setting_kinds import Reload
from polymq.settings import Settings, load_settings
from polymq.telemetry.telemetry import check_telemetry


def settings_of(**values: object) -> Settings:
    return load_settings(flags={"telemetry": values})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"endpoint": "collector:4318"}, "must be a URL"),
        ({"endpoint": "http://collector:4318"}, "which plain_hosts does not list"),
        ({"endpoint": "https://collector/?key=1"}, "without a query"),
        ({"endpoint": "https://ann:secret@collector"}, "without user"),
        ({"ca": "ca.pem"}, "endpoint has to be set, too"),
        ({"header_file": "header"}, "endpoint has to be set, too"),
        ({"endpoint": "https://collector", "interval_seconds": 0.5}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(values: dict[str, object], text: str) -> None:
    with pytest.raises(Failure) as caught:
        settings_of(**values)
    assert text in caught.value.text
    assert "\n" not in caught.value.text
    assert caught.value.code is ExitCode.USAGE


def test_a_collector_without_tls_has_to_be_listed() -> None:
    found = settings_of(endpoint="http://collector:4318", plain_hosts=["collector"])
    assert found.telemetry.enabled
    assert settings_of(endpoint="http://127.0.0.1:4318").telemetry.enabled
    assert not settings_of().telemetry.enabled


def test_a_start_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(Failure, match=r"pip install 'polymq\[telemetry\]'"):
        check_telemetry(settings_of(endpoint="https://collector"))
    check_telemetry(settings_of())


def test_a_header_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    header = tmp_path / "header"
    header.write_text("Authorization: Bearer 6f1c0a1b2c3d4e5f\n")
    header.chmod(0o644)
    chosen = settings_of(endpoint="https://collector", header_file=str(header))
    with pytest.raises(Failure, match=r"telemetry.header_file .* can be read by others"):
        check_telemetry(chosen)


def test_the_header_is_in_no_text_that_leaves_the_machine(tmp_path: Path) -> None:
    header = tmp_path / "header"
    header.write_text("Authorization: Bearer 6f1c0a1b2c3d4e5f\n")
    chosen = settings_of(
        endpoint="https://collector",
        header_file=str(header),
    ).model_copy(update={"server": load_settings(flags={}).server})
    assert "6f1c" not in remover_for(chosen)("sent Bearer 6f1c0a1b2c3d4e5f, refused")


def test_what_a_reload_applies() -> None:
    before = settings_of(endpoint="https://one")
    after = settings_of(endpoint="https://two", traces=True, spans_per_second_max=7)
    found = {change.name: change.reload for change in changes_between(before, after)}
    assert found == {
        "telemetry.endpoint": Reload.AT_ONCE,
        "telemetry.traces": Reload.RESTART,
        "telemetry.spans_per_second_max": Reload.AT_ONCE,
    }
    (switched_on,) = changes_between(settings_of(), before)
    assert switched_on.reload is Reload.RESTART

"""Figures as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from benchmarks.comparison import OUR_NAMES, Comparison, Figures
from benchmarks.floor import FloorFigures

TITLE_COLUMNS: Final = 38
NAME_COLUMNS: Final = 10
HEADER: Final = (
    f"{'':{TITLE_COLUMNS}} {'':{NAME_COLUMNS}} "
    f"{'CPU us/msg':>10} {'msg/s':>10} {'p50 us':>9} {'p99 us':>9}  {'peer CPU / ours':>15}  log"
)


def machine_lines(machine: Mapping[str, Any], versions: Mapping[str, str]) -> Iterator[str]:
    """What the figures were measured on."""
    yield (
        f"{machine['processor']}, {machine['cores']} cores, kernel {machine['kernel']}, "
        f"Python {machine['python']}, uvloop {machine['uvloop']}, "
        f"load average {machine['load_average']}"
    )
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield f"peers: {found or 'none'}"


def kernels_line(kernels: Mapping[str, str]) -> str:
    """Which form of the kernels was measured."""
    forms = set(kernels.values())
    if len(forms) == 1:
        return f"kernels: {forms.pop()}"
    return "kernels: " + ", ".join(f"{name} {form}" for name, form in kernels.items())


def floor_line(found: FloorFigures) -> str:
    """What the same bytes cost without a broker."""
    title = f"{found.floor.title:{TITLE_COLUMNS}} {'floor':{NAME_COLUMNS}}"
    return f"{title} {found.cpu_us_per_message:10.2f} {found.messages_per_second:10,.0f}"


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """A line per server."""
    title = comparison.scenario.title
    for name, figures in comparison.figures.items():
        yield f"{title:{TITLE_COLUMNS}} {name:{NAME_COLUMNS}} {_figures(comparison, name, figures)}"
        title = ""


def _figures(comparison: Comparison, name: str, figures: Figures) -> str:
    if not figures.loads:
        return f"FAILED: {figures.problem}"
    text = (
        f"{figures.median('cpu_us_per_message'):10.2f} "
        f"{figures.median('messages_per_second'):10,.0f} "
        f"{figures.median('p50_us'):9,.0f} {figures.median('p99_us'):9,.0f}"
    )
    if name not in OUR_NAMES:
        return f"{text}  FAILED: {figures.problem}" if figures.problem else text
    ratio = comparison.ratio("cpu_us_per_message", name)
    text += f"  {f'{ratio:.1f}x' if ratio is not None else '':>15}  "
    return text + (f"FAILED: {figures.problem}" if figures.problem else "= sent")

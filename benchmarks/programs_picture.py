"""What `programs.py` has measured, as a picture: how many times as fast as the official export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from programs_sides import ONNX_SIDES
from programs_table import Row, ratio

from etdeploy.core.console import count

_WIDTH, _LEFT, _RIGHT, _LINE, _TOP = 760, 250, 70, 30, 64
# Legible on a light and on a dark page.
_OURS, _OTHERS, _INK = "#2f81f7", {"onnxruntime": "#d29922", "openvino": "#a371f7"}, "#7d8590"


def picture(rows: Sequence[Row], side: str, by: str, threads: int) -> Iterator[str]:
    """Lines of an SVG: a bar for each row, and a mark for each other runtime.

    Args:
        rows: Those with other numbers of threads are left out.
        side: Whose programs the bars are of.
        by: What stands for a round: a word of `programs_table.BY`.
        threads: Of the rows that are shown.
    """
    shown = [row for row in rows if row.threads == threads and _speedup(row, side, by)]
    most = max(_speedup(row, name, by) for row in shown for name in (side, *ONNX_SIDES))
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    height = _TOP + _LINE * len(shown) + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14" fill="{_INK}">'
    )
    yield _text(
        10, 24, f"Times as fast as ExecuTorch's own export, {count(threads, 'thread')}", size=16
    )
    yield from _legend(side)
    official = _LEFT + scale
    for number, row in enumerate(shown):
        yield from _bar(row, side, by, _TOP + _LINE * number, scale)
    line = f"M{official:.1f} {_TOP - 4}V{height - 6}"
    yield f'<path d="{line}" stroke="{_INK}" stroke-dasharray="3 3"/>'
    yield "</svg>"


def _speedup(row: Row, name: str, by: str) -> float:
    found = ratio(row.sides.get("official"), row.sides.get(name), by)
    return found[0] if found else 0.0


def _bar(row: Row, side: str, by: str, top: float, scale: float) -> Iterator[str]:
    speedup = _speedup(row, side, by)
    end = _LEFT + scale * speedup
    yield _text(10, top + 17, f"{row.model} {row.scheme}")
    yield (
        f'<rect x="{_LEFT}" y="{top + 3}" width="{end - _LEFT:.1f}" height="18" rx="2" '
        f'fill="{_OURS}"/>'
    )
    marks = [(name, _LEFT + scale * _speedup(row, name, by)) for name in ONNX_SIDES]
    for name, x in marks:
        if x > _LEFT:
            yield f'<path d="M{x:.1f} {top}v24" stroke="{_OTHERS[name]}" stroke-width="3"/>'
    furthest = max([end, *(x for _, x in marks)])
    yield _text(furthest + 8, top + 17, f"{speedup:.2f}")


def _legend(side: str) -> Iterator[str]:
    x = 10.0
    for name, colour in {side: _OURS, **_OTHERS}.items():
        yield f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, 47, name)
        x += 130


def _text(x: float, y: float, text: str, size: int = 14) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(text)}</text>'

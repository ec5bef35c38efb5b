"""What tests of pictures share: worlds for any algorithm, and the marked groups of an SVG."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from coccl_dsl.pipeline import load

SVG = "{http://www.w3.org/2000/svg}"


def world_for(name: str, n: int) -> int | dict[str, int]:
    axes = load(name).axes
    return {axes[0]: 2, axes[1]: n // 2} if axes else (2 if load(name).kind == "send_recv" else n)


def groups(svg: str, kind: str) -> list[ET.Element]:
    return [g for g in ET.fromstring(svg).iter(f"{SVG}g") if kind in g.get("class", "").split()]

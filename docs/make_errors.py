"""Writes docs/errors.md: every code with its title, what it means, and an example from tests/lang/faulty.

python docs/make_errors.py
"""

from __future__ import annotations

from pathlib import Path

from coccl_dsl.diagnostics import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ROOT / "tests" / "golden" / "diagnostics"
PAGE = ROOT / "docs" / "errors.md"
SECTIONS = {
    "E1": "Files and syntax",
    "E2": "Names and types",
    "E3": "The proof",
    "E4": "Compressors",
    "E5": "Binding",
    "E6": "Policies",
}
HEAD = """\
# Errors

Every error has a code, a place (file, line, column) and, where one is likely, a mend. All that can be found are reported at once.
This page is made by `docs/make_errors.py`; the examples are what the faulty files in `tests/lang/faulty` give.
"""


def examples() -> dict[str, str]:
    """Code -> the shortest message with it."""
    found: dict[str, str] = {}
    for path in sorted(SHOWN.glob("*.txt")):
        for message in path.read_text(encoding="utf-8").rstrip("\n").split("\n\n"):
            code = message.partition("error[")[2][:4]
            if code not in found or _weight(message) < _weight(found[code]):
                found[code] = message
    return found


def _weight(message: str) -> tuple[bool, int]:
    """Messages that offer a mend first, then the short ones."""
    return "help:" not in message, len(message)


def page() -> str:
    shown, lines, section = examples(), [HEAD], ""
    for code, (title, meaning) in sorted(CATALOGUE.items()):
        if SECTIONS[code[:2]] != section:
            section = SECTIONS[code[:2]]
            lines.append(f"## {section}\n")
        lines.append(f"### {code}: {title}\n\n{meaning}\n")
        if code in shown:
            lines.append(f"```text\n{shown[code]}\n```\n")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

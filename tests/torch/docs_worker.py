"""One rank of docs/pytorch.md's second part: its Python, in order, in a folder that the test gives."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import torch
from forks import fork_world

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


def main() -> None:
    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    text = PAGE.read_text(encoding="utf-8").split("\n## Calls, hooks and operators\n")[1]
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"block {number} of pytorch.md", "exec"), names)  # noqa: S102


if __name__ == "__main__":
    fork_world(2, main)

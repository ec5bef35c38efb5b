"""Drive JupyterLab with a headless Chromium: `python tests/notebook/browser.py OUT`. Screenshots go to OUT; exits non-zero where something is amiss.

Run by test_browser.py in a network namespace of its own, so nothing but the loopback is there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = int(os.environ.get("COCCL_PATIENCE", "120")) * 1000  # milliseconds, on a busy machine
FAULTY = """%%coll
use "int8.comp"
collective wrong : all_reduce {
ranks r of n
inout buf[n]
compressor q = int8(group=128)
for s in range(n - 1) {
let c = (r - s) mod n
send compress(q, buf[c]) to (r + 1) mod n as w
buf[c] += decompress(w)
}
}"""


def raise_loopback() -> None:
    """`ip link set lo up`, where there is no `ip`."""
    with socket.socket() as s:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(s, 0x8913, request))[1]
        fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", flags | 1))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A server of the notebooks in `folder`, on the loopback."""
    port = free_port()
    settings = folder / "settings"
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JUPYTER_CONFIG_DIR": str(settings),
        "JUPYTER_DATA_DIR": str(settings / "data"),
        "JUPYTER_PATH": str(settings / "shared"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings / "lab"),
        "OMP_NUM_THREADS": "1",
    }
    quiet = settings / "lab" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    shutil.copytree(
        ROOT / "labextension", settings / "shared" / "labextensions" / "coccl-dsl"
    )  # as the wheel installs it
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--IdentityProvider.token=", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = (folder / "jupyterlab.log").open("w")
    server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/api", timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "jupyterlab.log").read_text()
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def open_notebook(page: Page, url: str, name: str, dark: bool = False) -> Locator:
    """Open it, run all cells, wait until the last one has run."""
    # A page's first notebook may be asked which kernel it wants.
    ask = page.locator(".jp-Dialog").get_by_role("button", name="Select Kernel", exact=True)
    page.add_locator_handler(ask, lambda: ask.click())
    page.goto(f"{url}/lab/workspaces/{name[:2]}/tree/{name}")
    panel = page.locator(".jp-NotebookPanel:visible")
    expect(panel.locator(".jp-CodeCell").first).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=PATIENCE)
    if dark:
        page.get_by_role("menuitem", name="Settings", exact=True).click()
        page.get_by_text("Theme", exact=True).first.click()
        page.get_by_text("JupyterLab Dark", exact=True).click()
        expect(page.locator("body[data-jp-theme-light=false]")).to_be_attached(timeout=PATIENCE)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    return panel


def wait_for_sliders(panel: Locator) -> None:
    expect(panel.locator(".widget-slider").first).to_be_visible(timeout=PATIENCE)


def shot(page: Page, out: Path, name: str) -> None:
    page.wait_for_timeout(400)  # cells that come into view are drawn late
    page.screenshot(path=str(out / f"{name}.png"))


def move_the_slider(page: Page, panel: Locator, out: Path, name: str, before: str, after: str) -> None:
    """One rank more, and the diagram follows."""
    wait_for_sliders(panel)
    diagram = panel.locator(".widget-html svg[aria-label]").first
    expect(diagram).to_have_attribute("aria-label", re.compile(before), timeout=PATIENCE)
    arrows = panel.locator(".widget-html svg").first.locator(".cc-arrow").count()
    slider = panel.locator(".widget-slider .noUi-handle").first
    slider.scroll_into_view_if_needed()
    shot(page, out, f"{name}_slider_before")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(diagram).to_have_attribute("aria-label", re.compile(after), timeout=PATIENCE)
    assert panel.locator(".widget-html svg").first.locator(".cc-arrow").count() > arrows
    shot(page, out, f"{name}_slider_after")


def type_a_fault(page: Page, panel: Locator, out: Path) -> None:
    """A new cell at the end, with a fault, shows the caret."""
    last = panel.locator(".jp-Cell").last
    last.scroll_into_view_if_needed()
    last.click()
    page.keyboard.press("Escape")
    page.keyboard.press("b")
    page.keyboard.press("Enter")
    page.keyboard.insert_text(FAULTY)
    editor = panel.locator(".jp-Cell").last.locator(".cm-content")
    for word, kind in (("collective", "keyword"), ("mod", "operator"), ("all_reduce", "kind"), ("compress", "call")):
        expect(editor.locator(f".cm-coccl-{kind}").get_by_text(word, exact=True).first).to_be_visible(timeout=PATIENCE)
    page.keyboard.press("Control+Enter")
    output = panel.locator(".jp-Cell").last.locator(".jp-OutputArea-output")
    expect(output.last).to_contain_text("error[E301]", timeout=PATIENCE)
    told = output.last.inner_text()
    assert "^^^" in told and "Traceback" not in told, told
    assert output.last.locator(".ansi-red-fg, .ansi-red-intense-fg").count() > 0
    output.last.scroll_into_view_if_needed()
    shot(page, out, "01_faulty_cell")


def check_pictures(panel: Locator) -> None:
    """Pictures are there, at their own size, not shrunk below it."""
    images = panel.locator(".jp-RenderedSVG img, .jp-RenderedSVG svg")
    assert images.count() > 0
    for i in range(images.count()):
        shown = images.nth(i).evaluate(
            "e => [e.getBoundingClientRect().width, e.naturalWidth || e.width.baseVal.value]"
        )
        assert shown[0] >= 0.95 * shown[1], f"picture {i} is shown {shown[0]:.0f} px wide, drawn for {shown[1]:.0f}"


def visit_01(page: Page, url: str, out: Path) -> None:
    panel = open_notebook(page, url, "01_first_collective.ipynb")
    move_the_slider(page, panel, out, "01", "4 ranks", "5 ranks")
    check_pictures(panel)
    type_a_fault(page, panel, out)
    panel.locator(".jp-RenderedSVG").first.scroll_into_view_if_needed()
    shot(page, out, "01_diagram")


def visit_03(page: Page, url: str, out: Path) -> None:
    panel = open_notebook(page, url, "03_two_shot_and_ring.ipynb", dark=True)
    move_the_slider(page, panel, out, "03", "4 ranks", "5 ranks")
    check_pictures(panel)
    for i in range(panel.locator(".jp-RenderedSVG").count()):
        panel.locator(".jp-RenderedSVG").nth(i).scroll_into_view_if_needed()
        shot(page, out, f"03_picture_{i}")


def main(out: Path) -> None:
    if "--loopback" in sys.argv:
        raise_loopback()
    out.mkdir(parents=True, exist_ok=True)
    outside: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (ROOT / "notebooks").glob("*.ipynb"):
            shutil.copy(path, folder)
        with jupyterlab(folder) as url, sync_playwright() as p:
            chromium = shutil.which("chromium")
            browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            for visit in (visit_01, visit_03):
                page = browser.new_page(viewport={"width": 1360, "height": 1000})
                page.on("request", lambda r: outside.append(r.url) if not local(r.url, url) else None)
                try:
                    visit(page, url, out)
                except BaseException:
                    shot(page, out, "failure")
                    raise
                page.close()
            browser.close()
    assert not outside, f"asked for {outside}"


def local(address: str, url: str) -> bool:
    return address.startswith((url, url.replace("http", "ws", 1), "data:", "blob:"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

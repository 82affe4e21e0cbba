#!/usr/bin/env python3
"""Opens the page of `sconce attend -o page.html` in headless Chromium and uses it: hovers over tokens and cells, chooses layers and
heads by the controls and the keyboard, changes from light to dark, and compares every weight with those of the json output.

    apt-get install chromium
    pip install -r scripts/check/requirements-browser.txt
    python3 scripts/check/attend_page.py [--sconce target/release/sconce] [--chromium /usr/bin/chromium] [--screenshots DIR]

Neither is installed by this script, and playwright's own browser is not used. A page of 128 tokens, 12 layers and 12 heads
(random weights) is opened five times; the median time until everything is drawn is printed, and compared with --max-seconds if that is
given. Exits with 1 if anything differs, the page logs an error, or it asks for another file.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "fixtures" / "bert-tiny"
TEXT = "The candle </script> & the lamp 灯"
LARGE = [
    "--config", ROOT / "configs" / "bert-base-uncased.json", "--random-weights", "1", "--tokenizer", MODEL / "tokenizer.json",
    "attention " * 126,
]
# Weights in the page are f16: 11 significant bits, and multiples of 2^-24 below 2^-14.
RTOL, ATOL = 2**-11, 2**-24


class Page:
    """A page in the browser, and what it does wrong."""

    def __init__(self, browser, path, scheme="light"):
        self.faults = []
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1500, "height": 1100}, bypass_csp=True)
        self.page = context.new_page()
        self.page.on("console", lambda message: self.faults.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("request", lambda request: request.url == path.as_uri() or self.faults.append(f"loads {request.url}"))
        start = time.perf_counter()
        self.page.goto(path.as_uri())
        while not self.js("$('overview').hidden || !!grid.picture"):
            time.sleep(0.005)
        self.seconds = time.perf_counter() - start

    def js(self, expression):
        return self.page.evaluate(expression)

    def weights(self):
        """The weights of the tokens for the query; None without a query."""
        return self.js("elements.map(e => e.dataset.weight === undefined ? null : +e.dataset.weight)")

    def state(self):
        return self.js("[$('layer').selectedOptions[0].text, $('head').selectedOptions[0].text, state.query]")

    def status(self):
        """The sentence below the tokens, without its bidirectional isolates."""
        return self.page.locator("#status").inner_text().translate({0x2068: None, 0x2069: None})

    def pixels(self):
        """The number of different colours of the heat map."""
        return self.js(
            "(() => { const c = $('map'); const d = new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
            ".data.buffer); return new Set(d).size; })()"
        )

    def screenshot(self, path):
        self.page.screenshot(path=path)
        return Path(path).read_bytes()

    def close(self):
        self.page.context.close()


class Check:
    def __init__(self):
        self.faults = 0

    def expect(self, what, is_true):
        if not is_true:
            self.faults += 1
            print(f"FAILED: {what}")

    def close(self, what, found, expected):
        ok = len(found) == len(expected) and all(
            f is not None and abs(f - e) <= ATOL + RTOL * abs(e) for f, e in zip(found, expected)
        )
        self.expect(f"{what}: {found} is not {expected}", ok)


def attend(sconce, *args):
    """The output of `sconce attend` as JSON."""
    command = [sconce, "attend", "-m", MODEL, "--output-format", "json", *args]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def use(check, page, sconce):
    """Hovers and chooses everything in a page of all layers and heads of TEXT."""
    heads, mean = attend(sconce, TEXT), attend(sconce, "--mean", TEXT)
    rollout = [attend(sconce, "--rollout", "--layer", str(layer), TEXT)["attentions"][0] for layer in heads["layers"]]
    columns = {f"head {h}": [layer[h] for layer in heads["attentions"]] for h in heads["heads"]}
    columns |= {"mean": [layer[0] for layer in mean["attentions"]], "rollout": [layer[0] for layer in rollout]}
    shown = page.js("elements.map(e => e.textContent)")
    check.expect(f"tokens {shown} are not {heads['tokens']}", shown == heads["tokens"])
    check.expect("the last layer and first head are shown first", page.state() == [f"layer {len(heads['layers']) - 1}", "head 0", None])
    check.expect("no token is coloured before hovering", page.weights() == [None] * len(shown))
    tokens = page.page.locator(".token")
    for layer in heads["layers"]:
        for column, matrices in columns.items():
            page.page.select_option("#layer", label=f"layer {layer}")
            page.page.select_option("#head", label=column)
            for query in (0, 3, len(shown) - 1):
                tokens.nth(query).hover()
                check.close(f"layer {layer}, {column}, query {query}", page.weights(), matrices[layer][query])
    status = page.status()
    check.expect(f"the status names the query: {status}", status.startswith(f"{shown[-1]} attends to "))
    check.expect("the heat map has colours", page.pixels() > 10)
    # The cell of query 2 and key 5.
    cell, margin = page.js("[map.cell, map.margin]")
    position = {"x": margin + 5.5 * cell, "y": margin + 2.5 * cell}
    page.page.locator("#map").hover(position=position)
    status = page.status()
    value = columns["rollout"][-1][2][5]
    check.expect(f"the status of a cell: {status}", status == f"{shown[2]} → {shown[5]}: {value:.3f}")
    # The matrix of layer 0, head 1 in the overview.
    x, y = page.js("[grid.left + 1.5 * grid.cell, grid.top + 0.5 * grid.cell]")
    page.page.locator("#grid").click(position={"x": x, "y": y})
    check.expect("a click in the overview", page.state()[:2] == ["layer 0", "head 1"])
    keyboard(check, page, columns, len(heads["layers"]))


def keyboard(check, page, columns, layers):
    page.page.locator("#tokens").focus()
    names = list(columns)

    def press(*keys):
        for key in keys:
            page.page.keyboard.press(key)

    press("Escape")
    check.expect("Escape: no token", page.state()[2] is None and set(page.weights()) == {None})
    press("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight")
    check.expect("arrows choose a token", page.state()[2] == 1)
    press("[", "ArrowUp", "ArrowUp")
    check.expect("[ and ↑ at the first head and layer", page.state() == ["layer 0", names[0], 1])
    press("]", "ArrowDown")
    check.expect("] and ↓", page.state() == [f"layer {min(1, layers - 1)}", names[1], 1])
    check.close("weights by the keyboard", page.weights(), columns[names[1]][min(1, layers - 1)][1])
    press("m")
    check.expect("m: mean", page.state()[1] == "mean")
    press("r")
    check.expect("r: rollout", page.state()[1] == "rollout")
    before = page.js("document.documentElement.dataset.theme")
    press("t")
    after = page.js("document.documentElement.dataset.theme")
    check.expect("t: the other theme", {before, after} == {"light", "dark"})
    press("t")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sconce", type=Path, default=ROOT / "target" / "release" / "sconce")
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("chromium-browser"))
    parser.add_argument("--screenshots", type=Path, help="a directory for screenshots")
    parser.add_argument("--max-seconds", type=float, help="the longest time in which the page of 128 tokens may open")
    args = parser.parse_args()
    if not args.chromium:
        sys.exit("attend_page: no chromium found; install Debian's package chromium, or pass --chromium PATH")
    check = Check()
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        work = Path(work)
        folder = args.screenshots or work
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([args.sconce, "attend", "-m", MODEL, "-o", work / "page.html", TEXT], check=True)
        subprocess.run([args.sconce, "attend", "-o", work / "large.html", *LARGE], check=True)
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox", "--headless=new"])
        pictures, faults = {}, []
        for scheme in ("light", "dark"):
            page = Page(browser, work / "page.html", scheme)
            check.expect(f"{scheme} follows the system", page.js("document.documentElement.dataset.theme") == scheme)
            use(check, page, args.sconce)
            page.page.locator(".token").nth(2).hover()
            pictures[scheme] = page.screenshot(folder / f"page-{scheme}.png")
            faults += page.faults
            page.close()
        check.expect("light and dark differ", pictures["light"] != pictures["dark"])
        seconds = []
        for i in range(5):
            page = Page(browser, work / "large.html")
            seconds.append(page.seconds)
            check.expect("the large page has 128 tokens, 12 layers and 14 views",
                         page.js("[n, rows.length, columns.length]") == [128, 12, 14])
            if i == 0:
                page.page.locator(".token").nth(5).hover()
                page.screenshot(folder / "large.png")
            faults += page.faults
            page.close()
        browser.close()
        megabytes = (work / "large.html").stat().st_size / 1e6
    for fault in faults:
        check.expect(fault, False)
    median = statistics.median(seconds)
    print(f"128 tokens, 12 layers, 12 heads: {megabytes:.1f} MB, opened and drawn in {median:.2f} s (median of {len(seconds)})")
    if args.max_seconds and median > args.max_seconds:
        check.expect(f"{median:.2f} s is more than {args.max_seconds} s", False)
    if check.faults:
        sys.exit(f"attend_page: {check.faults} checks failed")
    print("attend_page: the page works")


if __name__ == "__main__":
    main()

"""Take the README's picture: the animated kitchen of chapter 01, as a browser shows it at one moment.

    python tools/picture.py BUILT_BOOK [assets/kitchen.png]

BUILT_BOOK is the folder that tools/build_book.py names. Needs Chromium or Chrome.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

MOMENT = 0.42  # share of the animation's length at which static batching has finished orders that can't leave


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("book", type=Path)
    parser.add_argument("picture", type=Path, nargs="?", default=Path("assets/kitchen.png"))
    args = parser.parse_args()
    found = next((path for name in ("chromium", "google-chrome", "chrome") if (path := shutil.which(name))), None)
    if found is None:
        parser.exit(2, "tools/picture.py: Chromium or Chrome is needed, and neither is on the PATH\n")
    page_file = args.book.resolve() / "chapters" / "01_night_kitchen.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000}, device_scale_factor=1.5)
        page.goto(page_file.as_uri())
        kitchen = page.locator("[data-sl=kitchen]").first
        slider = kitchen.locator("input[type=range]").first
        slider.evaluate(
            "(s, share) => { s.value = +s.min + share * (s.max - s.min); s.dispatchEvent(new Event('input')) }", MOMENT
        )
        page.wait_for_timeout(300)
        kitchen.screenshot(path=args.picture)
        browser.close()
    print(args.picture)


if __name__ == "__main__":
    main()

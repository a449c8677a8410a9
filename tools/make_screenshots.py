"""Makes docs/pictures: the page in the light and in the dark, 1440 by 900 at twice the density, of the tests' studio.

    python tools/make_screenshots.py             all of them
    python tools/make_screenshots.py fleet log   these

Needs chromium, pngquant and the font Inter (apt-get install chromium pngquant fonts-inter), which stands in for the
system's own, so that pictures of two machines are alike. The studio's clock stands still, and so does the browser's. A
picture that has changed by less than a thousandth of its pixels stays as it was.
"""

import asyncio
import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import Tab, browsing  # noqa: E402
from tests.support.cluster import Clusters, TestServer  # noqa: E402
from tests.support.gateway import serving  # noqa: E402
from tests.support.studio import NOW, ZONE, Studio, furnish  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
_UNCHANGED: Final = 0.001  # of the pixels
_FONT: Final = """addEventListener("DOMContentLoaded", () =>
  document.documentElement.style.setProperty("--sans", "Inter, system-ui"))"""
# The share of pixels in which two pictures differ by more than reducing the colours explains; 1 if one is larger.
_DIFFERENCE: Final = """async ([one, other]) => {
  const pixels = async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const picture = await createImageBitmap(new Blob([bytes]));
    const canvas = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
    canvas.drawImage(picture, 0, 0);
    return canvas.getImageData(0, 0, picture.width, picture.height).data;
  };
  const [a, b] = [await pixels(one), await pixels(other)];
  if (a.length !== b.length) return 1;
  let differ = 0;
  for (let at = 0; at < a.length; at += 4) {
    if ([0, 1, 2].some((part) => Math.abs(a[at + part] - b[at + part]) > 32)) differ++;
  }
  return differ / (a.length / 4);
}"""


def shown(studio: Studio) -> dict[str, str]:
    """The pictures, and the address that each is of."""
    failed, waiting = studio.jobs["failed"], studio.jobs["fanned"]
    return {
        "overview": "/",
        "job": f"/jobs/{failed}",
        "fleet": "/fleet",
        "why": f"/jobs/{waiting}",
        "log": f"/jobs/{failed}/log?step=render",
        "schedules": "/schedules",
    }


async def make(server: TestServer, wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with server.cloned() as url:
            studio = await furnish(url, folder / "objects")
            async with serving(url, folder=folder / "objects", hears=True) as gateway:
                gateway.context.hub._database_time = lambda: NOW  # it counts on between two looks
                for theme in ("light", "dark"):
                    context = {"color_scheme": theme, "timezone_id": ZONE, "device_scale_factor": 2}
                    async with browsing(gateway, **context) as tab:
                        await tab.page.add_init_script(_FONT)
                        await tab.log_in("admin")
                        await tab.page.clock.set_fixed_time(NOW)
                        for picture, address in shown(studio).items():
                            if not wanted or picture in wanted:
                                await _take(tab, address, PICTURES / f"{picture}-{theme}.png")


async def _take(tab: Tab, address: str, file: Path) -> None:
    await tab.open(address)
    await tab.settle()
    await tab.page.wait_for_timeout(500)  # what is drawn after it has been loaded
    picture = await tab.page.screenshot(animations="disabled", caret="hide")
    if (before := _before(file)) is not None:
        both = [base64.b64encode(each).decode() for each in (before, picture)]
        if await tab.page.evaluate(_DIFFERENCE, both) <= _UNCHANGED:
            return
    _write(file, picture)


def _before(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _write(file: Path, picture: bytes) -> None:
    reduce = ["pngquant", "--speed", "1", "--strip", "48", "-"]
    reduced = subprocess.run(reduce, input=picture, capture_output=True, check=True).stdout
    file.write_bytes(reduced)
    sys.stdout.write(f"{file.relative_to(ROOT)}  {len(reduced) / 1000:.0f} kB\n")


def main() -> None:
    missing = [program for program in ("chromium", "pngquant") if shutil.which(program) is None]
    if "Inter" not in subprocess.run(["fc-list", ":", "family"], capture_output=True, text=True, check=True).stdout:
        missing.append("fonts-inter")
    if missing:
        sys.exit(f"missing: {', '.join(missing)}; apt-get install {' '.join(missing)}")
    PICTURES.mkdir(parents=True, exist_ok=True)
    clusters = Clusters()
    try:
        asyncio.run(make(clusters.get("pg18"), sys.argv[1:]))
    finally:
        clusters.close()


if __name__ == "__main__":
    main()

"""The pictures of the documentation, from real runs:    python docs/pictures.py

Terminals are drawn as SVG; the report is a photograph by a Chromium that is installed. `make pictures` calls this.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import termios
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

PICTURES = Path(__file__).parent / "pictures"
COLUMNS, LINES = 100, 60
TERMINALS = {
    "prepare": ["prepare", "corpus.txt", "--separator", r"\n\n\n", "--val", "0.05", "-o", "data"],
    "show": ["show", "data", "--documents", "2", "--tokens", "60"],
}
"""Picture → the arguments of shardmill; one builds on what another has made."""


def on_a_terminal(arguments: list[str], folder: Path) -> pyte.Screen:
    """The screen at the end of a command. A program that fails ends this one."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PAGER": "cat"}
    call = [sys.executable, "-m", "shardmill", *arguments]
    with subprocess.Popen(call, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                stream.feed(os.read(ours, 1 << 16))
            except OSError:  # how Linux says that nobody writes any more
                break
    os.close(ours)
    if process.returncode:
        sys.exit("\n".join(screen.display).strip())
    return screen


def as_text(screen: pyte.Screen) -> Text:
    """What stands on a screen, with its colours."""
    lines = []
    for row in range(max((y for y, line in enumerate(screen.display) if line.strip()), default=0) + 1):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        for (front, back, bold), run in groupby(cells, lambda cell: (cell.fg, cell.bg, cell.bold)):
            style = Style(color=_colour(front), bgcolor=_colour(back), bold=bold)
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        lines.append(line)
    return Text("\n").join(lines)


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    name = {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name)
    return re.sub("^bright(?!_)", "bright_", name)


def as_svg(name: str, command: str, text: Text) -> str:
    """A picture that asks no server for a font."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115 - ends with this program
    console.print(Text(f"$ {command}", style="bold"))
    console.print(text, end="")
    drawn = console.export_svg(title="shardmill", unique_id=name)
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in drawn.replace("Fira Code, monospace", "monospace").splitlines()) + "\n"


def photograph(folder: Path) -> None:
    """The top of the page that `shardmill report` writes."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        sys.stderr.write("no Chromium was found: report.png stays as it is\n")
        return
    subprocess.run([sys.executable, "-m", "shardmill", "report", "data", "--seed", "1"], cwd=folder, check=True)
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,900"]
    picture = PICTURES / "report.png"
    address = (folder / "report.html").as_uri()
    call = [browser, *arguments, f"--screenshot={picture}", address]
    subprocess.run(call, check=True, stderr=subprocess.DEVNULL, timeout=120)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        library = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-m]*.py"))
        Path(folder, "corpus.txt").write_bytes(b"".join(path.read_bytes() for path in library))
        for name, arguments in TERMINALS.items():
            words = [f"'{word}'" if "\\" in word else word for word in arguments]
            text = as_text(on_a_terminal(arguments, Path(folder)))
            (PICTURES / f"{name}.svg").write_text(as_svg(name, "shardmill " + " ".join(words), text), encoding="utf-8")
        photograph(Path(folder))


if __name__ == "__main__":
    main()

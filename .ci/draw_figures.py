"""Draw docs/figures/*.png again by the commands in docs/figures.md: `make figures`.

Arguments are headings of that page: `python .ci/draw_figures.py Runs`. By default all of them (minutes).
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def read_sections() -> dict[str, str]:
    """Return the text below every heading of the page."""
    _, *parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def list_commands(text: str) -> list[str]:
    """Return the commands of a section that lead to its figures, in their order."""
    commands = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    shown = set(re.findall(r"\(figures/([\w-]+\.png)\)", text))
    drawing = [command for command in commands if shown & set(re.findall(r"--out ([\w-]+\.png)", command))]
    return [command for command in commands if command in drawing or command.startswith("straggler run ")]


def draw_section(text: str, folder: Path) -> None:
    """Run the commands of a section in a folder, and copy its figures into the documentation."""
    for command in list_commands(text):
        print(command, flush=True)
        python = f"{sys.executable} -m straggler"
        subprocess.run(command.replace("straggler", python, 1), shell=True, cwd=folder, check=True)
    for name in re.findall(r"\(figures/([\w-]+\.png)\)", text):
        shutil.copy(folder / name, PAGE.parent / "figures" / name)


def main() -> None:
    sections = read_sections()
    for wanted in sys.argv[1:] or [name for name, text in sections.items() if "(figures/" in text]:
        with tempfile.TemporaryDirectory() as folder:
            draw_section(sections[wanted], Path(folder))


if __name__ == "__main__":
    main()

"""Write the generated parts of the documents: the map in DESIGN.md, docs/settings.md and docs/commands.md.

`make docs` runs it. With --check it only reports what is out of date, and exits with code 1.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "straggler"


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, without its final full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n")[0].removesuffix(".")


def module_map() -> str:
    """Return the tree of packages and modules as a block of text, one line each."""
    lines = ["```text"]
    for package in sorted({path.parent for path in PACKAGE.rglob("*.py")}):
        name = "straggler" if package == PACKAGE else package.relative_to(PACKAGE).as_posix()
        lines.append(f"{name + '/':<27} {first_line(package / '__init__.py')}")
        modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        lines += [f"    {path.stem:<23} {first_line(path)}" for path in modules]
    return "\n".join([*lines, "```"])


def replace_block(text: str, name: str, content: str) -> str:
    """Replace the text between `<!-- name -->` and `<!-- /name -->`."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(text), f"no place for {name}"
    return pattern.sub(lambda match: f"{match[1]}\n{content}\n{match[2]}", text)


SETTINGS_INTRODUCTION = """# Settings

These are the settings of an experiment. They are the keyword arguments of `Experiment` in Python, the keys
of a TOML file for `straggler run --config FILE.toml`, and the options of `straggler run` (with `-` instead of
`_`). In a sweep every setting may be a list. `make docs` writes this page from the descriptions in
src/straggler/config/fields.py; `straggler schema` prints the same as a JSON schema for editors.
"""


def settings_page() -> str:
    """Return docs/settings.md, written from the descriptions of the fields of Experiment."""
    command = [sys.executable, "-m", "straggler", "schema", "--format", "markdown"]
    tables = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"{SETTINGS_INTRODUCTION}\n{tables.strip()}\n"


COMMANDS_INTRODUCTION = """# Commands

All commands and their options, as `--help` prints them in the terminal. `make docs` writes this page from the
commands themselves. The settings of an experiment, which `run` accepts as options, are on a
[page of their own](settings.md).
"""


def commands_page() -> str:
    """Return docs/commands.md: every command with its arguments and options."""
    from straggler.cli import COMMANDS, build_app
    from straggler.experiment import Experiment

    group: Any = typer.main.get_command(build_app(load_all=True))
    parts = [COMMANDS_INTRODUCTION]
    for panel, names in COMMANDS.items():
        parts.append(f"## {panel}\n")
        for name in names:
            command = group.commands[name]
            settings = Experiment.model_fields if name == "run" else {}
            shown = [p for p in command.params if p.name not in settings and not getattr(p, "hidden", False)]
            parts.append(f"### `straggler {name}`\n\n{plain(command.help)}\n")
            parts.append("| argument or option | meaning |\n|---|---|")
            parts += [f"| `{', '.join(spelling(p))}` | {plain(p.help)} |" for p in shown]
            parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def spelling(parameter: Any) -> list[str]:
    """Return how a parameter is written: `RUN` for an argument, `--out` for an option."""
    if parameter.param_type_name == "argument":
        return [parameter.name.upper().rstrip("_")]
    return [word for word in (*parameter.opts, *parameter.secondary_opts) if word.startswith("-")]


def plain(text: str | None) -> str:
    """Return a help text as one line of Markdown."""
    text = re.sub(r"\[/?(?:bold|dim|italic)\]", "", text or "")
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """Write or check every generated part; return the exit code."""
    design = ROOT / "DESIGN.md"
    wanted = {
        design: replace_block(design.read_text(), "map", module_map()),
        ROOT / "docs" / "settings.md": settings_page(),
        ROOT / "docs" / "commands.md": commands_page(),
    }
    outdated = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in outdated:
        if "--check" in sys.argv:
            print(f"{path.relative_to(ROOT)} is out of date; run make docs")
        else:
            path.write_text(wanted[path])
    return 1 if outdated and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())

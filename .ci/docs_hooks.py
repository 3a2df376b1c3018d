"""Prepare the pages of the documentation site (hooks of MkDocs).

The Markdown files work in three places: on a code host, in this site, and in the tests. These hooks translate
what differs: links that leave docs/, the words after an opening fence, and the notebook. After the build they
write llms.txt, a summary of the site for language models.
"""

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CODE = re.compile(r"(^(```|~~~).*?^\2[^\n]*$|`(?:[^`\n]|\n(?!\n))+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\(\s*)([^)\s#]+)((?:#[^)\s]*)?)(?=[^)]*\))")
FENCE = re.compile(r"^```([^\n`]*)$", re.MULTILINE)
IMAGES = {".png", ".svg", ".gif"}
PLACES: dict[str, str] = {}  # address in the site → path in the repository, of files outside docs/


def find_targets(text: str, source: Path) -> dict[str, Path]:
    """Return the relative links of a Markdown file that lead to existing files, and these files."""
    prose = CODE.sub("", text)
    links = {link for _, link, _ in LINK.findall(prose) if not re.match(r"[a-z][a-z0-9+.-]*:", link)}
    targets = {link: Path(os.path.normpath(source.parent / link)) for link in links}
    return {link: path for link, path in targets.items() if path.is_file() and path.is_relative_to(ROOT)}


def address(path: Path) -> str:
    """Return the place of a file of the repository in the site."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix().replace(".ipynb", ".md")
    name = path.relative_to(ROOT).as_posix().lstrip(".")  # MkDocs leaves out hidden files
    if name == "README.md":
        return "index.md"
    is_shown = path.suffix in IMAGES | {".md"}
    return f"project/{name}" if is_shown else f"project/{name}.txt"  # browsers show .txt


def render_output(output: dict[str, Any], name: str, files: Files, config: MkDocsConfig) -> str:
    """Return one output of a notebook's cell as Markdown; images become files."""
    data = output.get("data", {})
    if "image/png" in data:
        content = base64.b64decode(data["image/png"])
        files.append(File.generated(config, f"figures/{name}.png", content=content))
        return f"![Output of the cell](figures/{name}.png)\n"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```\n"


def render_notebook(path: Path, files: Files, config: MkDocsConfig) -> str:
    """Return a notebook as Markdown."""
    parts = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(f"{source}\n")
            continue
        parts.append(f"```python\n{source}\n```\n")
        for index, output in enumerate(cell["outputs"]):
            parts.append(render_output(output, f"{path.stem}-{number}-{index}", files, config))
    return "\n".join(parts)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebook and every file outside docs/ that a page links to, directly or indirectly."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = render_notebook(DOCS / notebook.src_uri, files, config)
        files.append(File.generated(config, f"{notebook.src_uri.removesuffix('.ipynb')}.md", content=text))
    names = ("CONTRIBUTING.md", "DESIGN.md", "CHANGELOG.md", "SECURITY.md")
    waiting = [*DOCS.glob("*.md"), *(ROOT / name for name in names)]
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        place = address(source)
        if files.get_file_from_path(place) is None:
            PLACES[place] = str(source)
            content: str | bytes = source.read_text() if source.suffix == ".md" else source.read_bytes()
            files.append(File.generated(config, place, content=content))
        if source.suffix == ".md":
            found = set(find_targets(source.read_text(), source).values()) - seen
            seen |= found
            waiting += found
    return files


def translate_fence(match: re.Match[str]) -> str:
    """Turn ```` ```python mine.py ```` into a fence with a title; drop words that only the tests read."""
    language, *words = match[1].split() or [""]
    title = next((word for word in words if "." in word), None)
    return f'```{language} title="{title}"' if title else f"```{language}"


def translate_links(text: str, source: Path, place: str) -> str:
    """Make links lead to the places that files of the repository have in the site."""
    targets = find_targets(text, source)

    def replace(match: re.Match[str]) -> str:
        if (path := targets.get(match[2])) is None:
            return match[0]
        return f"{match[1]}{os.path.relpath(address(path), Path(place).parent)}{match[3]}"

    parts = CODE.split(text)  # text, code, its fence, text, …
    parts[::3] = [LINK.sub(replace, part) for part in parts[::3]]
    return "".join(part for index, part in enumerate(parts) if index % 3 != 2)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Translate the links and fences of a page."""
    place = page.file.src_uri
    source = Path(PLACES.get(place, DOCS / place))
    return FENCE.sub(translate_fence, translate_links(markdown, source, place))


def first_sentence(markdown: str) -> str:
    """Return the first sentence of the first paragraph of a page (two, if it is short), without links."""
    for paragraph in re.split(r"\n\s*\n", markdown):
        if re.match(r"(?!```)[A-Za-z*`\[“]", paragraph.strip()):
            text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            sentences = re.split(r"(?<=[.?!]) (?=[A-Z`])", re.sub(r"\*+", "", text))
            return " ".join(sentences[: 1 if len(sentences[0]) > 40 else 2]).rstrip(":")
    return ""


def on_env(env: Any, config: MkDocsConfig, files: Files) -> None:
    """Write llms.txt: the name of the site, a summary, and every page of the navigation with one sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for item in config["nav"] or []:
        ((title, content),) = item.items()
        pages = content if isinstance(content, list) else [{title: content}]
        lines += [f"## {title}", ""]
        for entry in pages:
            ((name, place),) = entry.items()
            file = files.get_file_from_path(place)
            if file is not None and file.page is not None:
                lines.append(f"- [{name}]({file.url}): {first_sentence(file.page.markdown or '')}")
        lines.append("")
    Path(config.site_dir).mkdir(parents=True, exist_ok=True)
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines))


def on_post_build(config: MkDocsConfig) -> None:
    """Write the search index as a script too: pages that are opened from the disk cannot fetch JSON."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text()
    (folder / "search_index.js").write_text(f"var __index = {index}")

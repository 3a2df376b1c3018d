"""The static playground: one page that needs neither a server nor a network."""

from pathlib import Path

from straggler.config.registry import InputError
from straggler.running.atomic_files import replace_atomically
from straggler.web.playground import list_choices
from straggler.web.report import dump_json, read_static, render_template

# Classic scripts in this order, because browsers load no modules from files.
SIMULATION_SCRIPTS = ("play_random.js", "play_cluster.js", "play_policies.js", "play_simulation.js")
PLAYGROUND_SCRIPTS = (
    *SIMULATION_SCRIPTS,
    *("play_stage.js", "play_settings.js", "play_controls.js", "play_page.js"),
)


def render_static_playground() -> str:
    """Return the playground as one HTML page with its scripts, styles and recorded runs."""
    return render_template(
        "static_playground.html",
        styles=[read_static(name) for name in ("style.css", "play.css")],
        scripts=[read_static(name) for name in ("draw.js", *PLAYGROUND_SCRIPTS, "play_static.js")],
        choices=dump_json(list_choices()),
    )


def build_static_playground(folder: Path) -> Path:
    """Write the static playground into a folder and return its page."""
    path = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as temporary:
            temporary.write_text(render_static_playground(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot write {path} ({error.strerror}). Choose another folder.") from None
    return path

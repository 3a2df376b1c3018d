"""Rules of the source tree: imports go down, modules are small and documented, names are unique."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from straggler.algorithms.corrections import CORRECTIONS
from straggler.algorithms.methods import METHODS
from straggler.algorithms.optimizers import OPTIMIZERS
from straggler.algorithms.policies import POLICIES
from straggler.config.settings import PROBLEM_DATA
from straggler.experiment import Experiment
from straggler.problems.models import MODELS
from straggler.problems.partitions import PARTITIONS
from straggler.timing import DELAYS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "straggler"

# Layers from the bottom to the top. A module may import the layers below its own. Each text is a unit of
# packages or modules, which may also import each other; units of one layer may not. The longest name counts.
LAYERS = [
    ["running.untrusted_files"],
    ["running.parquet_files"],
    [
        "config.imports config.fingerprints config.registry",
        "record",
        "running.allocator running.atomic_files running.signals running.watchdog",
    ],
    ["core"],
    ["timing", "problems"],
    ["algorithms", "engines"],
    ["config"],
    ["experiment"],
    ["running timing.throughput timing.clusters timing.calibration"],
    ["analysis"],
    ["sweeps", "web", "config.listing"],
    ["reproduction"],
    ["cli"],
    ["__main__"],
]
UNITS = {name: names for layer in LAYERS for names in layer for name in names.split()}
LEVEL = {names: level for level, layer in enumerate(LAYERS) for names in layer}
# Experiment.run is a shortcut for the function that runs an experiment, and imports it when it is called.
EXCEPTIONS = {("experiment", f"running.{name}") for name in ("runner", "observer", "callbacks")}
ONLY: dict[str, set[str]] = {  # these units import nothing else from this package
    "analysis": {
        "algorithms",
        "config.registry",
        "record",
        "running.atomic_files",
        "running.untrusted_files",
    },
    "record": {"running.parquet_files", "running.untrusted_files"},
}

ALGORITHMS = ("algorithms.policies", "algorithms.corrections", "algorithms.optimizers")
FORBIDDEN_NAMES = {"utils", "util", "common", "base", "helpers", "helper", "manager", "misc"}
CLOCKS_AND_FILES = {
    *("time", "datetime", "sched", "heapq", "queue", "threading", "asyncio", "concurrent"),
    *("multiprocessing", "socket", "subprocess", "os", "io", "pathlib", "random"),
}
MAX_LINES = 350


def modules() -> dict[str, Path]:
    """Return every module by its dotted name within the package; the package itself is ''."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield (module, name) of every import, also inside functions; the name is None for `import module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((module, alias.name) for alias in node.names)


def our_imports(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield the imports from this package, by dotted name within it."""
    for module, name in imports(source):
        if module == "straggler" and name in MODULES:
            yield name, None  # from straggler import record
        elif module.split(".")[0] == "straggler":
            yield module.removeprefix("straggler").removeprefix("."), name


def roots(path: Path) -> set[str]:
    """Return the top-level packages that a file imports from."""
    return {module.split(".")[0] for module, _ in imports(path.read_text())}


def find_longest(module: str, names: Collection[str]) -> str | None:
    """Return the longest of the names that the module is, or is in."""
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in names), None)


def find_violations(module: str, source: str) -> list[str]:
    """Return a message for each import that breaks a rule."""
    unit = UNITS[find_longest(module, UNITS) or ""]
    found = [f"{module} imports {path}: use the full name" for path, _ in imports(source) if path[0] == "."]
    for target, _ in our_imports(source):
        name = find_longest(target, UNITS)
        if name is None:
            found.append(f"{module} imports {target or 'straggler'}, which has no layer")
        elif UNITS[name] == unit or (module, target) in EXCEPTIONS:
            continue
        elif unit in ONLY and find_longest(target, ONLY[unit]) is None:
            found.append(f"{module} may not import {target}")
        elif LEVEL[UNITS[name]] >= LEVEL[unit]:
            found.append(f"{module} imports {target}, which is not in a lower layer")
    return found


def test_every_module_has_a_layer() -> None:
    assert not [module for module in MODULES if module and find_longest(module, UNITS) is None]


@pytest.mark.parametrize("module", [module for module in MODULES if module])
def test_imports_go_down(module: str) -> None:
    assert find_violations(module, MODULES[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.new", "from straggler.timing.laws import Law"),
        ("core.new", "def f():\n    from straggler.experiment import Experiment"),
        ("core.new", "if TYPE_CHECKING:\n    import straggler.problems.supervised"),
        (
            "algorithms.policies.new",
            "from straggler.experiment import Experiment",
        ),
        ("problems.new", "from straggler.engines.pool.gradient_pool import GradientComputer"),
        ("analysis.new", "from straggler.experiment import Experiment"),
        ("analysis.new", "from straggler.engines.simulator import Simulator"),
        ("analysis.new", "from straggler import experiment"),
        ("experiment", "from straggler.cli import main"),
        ("experiment", "from straggler import Record"),
        ("experiment", "from .record import Record"),
    ],
)
def test_wrong_imports_are_found(module: str, source: str) -> None:
    assert find_violations(module, source)


def test_allowed_imports_pass() -> None:
    assert not find_violations("engines.new", "from straggler.problems.supervised import Chunk\nimport torch")
    assert not find_violations("cli", "from straggler.experiment import Experiment\nimport straggler.record")


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith(ALGORITHMS)])
def test_algorithms_have_no_clock_queue_thread_or_file(module: str) -> None:
    assert not roots(MODULES[module]) & CLOCKS_AND_FILES


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith(ALGORITHMS[:2])])
def test_algorithms_have_no_while(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.While)]


def test_ray_is_imported_in_two_modules() -> None:
    users = [module for module, path in MODULES.items() if "ray" in roots(path)]
    assert users in ([], ["engines.ray", "engines.ray_cluster"])


@pytest.mark.parametrize("module", list(MODULES))
def test_modules_are_documented_and_small(module: str) -> None:
    source = MODULES[module].read_text()
    assert not set(module.split(".")) & FORBIDDEN_NAMES
    assert len(source.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(source))
    assert (MODULES[module].parent / "__init__.py").exists()


def test_the_package_root_has_four_modules() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "experiment", "record"}


def test_no_two_modules_define_a_class_of_the_same_name() -> None:
    homes: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


CATALOGUES: dict[str, Mapping[str, Any]] = {
    "policies": POLICIES,
    "corrections": CORRECTIONS,
    "optimizers": OPTIMIZERS,
    "delays": DELAYS,
    "partitions": PARTITIONS,
    "models": MODELS,
    "datasets": PROBLEM_DATA,
}


@pytest.mark.parametrize(("name", "entry"), [item for c in CATALOGUES.values() for item in c.items()])
def test_every_entry_has_a_summary_of_one_line(name: str, entry: type) -> None:
    docstring = vars(entry).get("__doc__") or ""  # an inherited docstring does not count
    first = docstring.split("\n")[0]
    assert first.endswith((".", ":")) and len(first) > 10
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", name)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_existing_components_and_a_paper(name: str) -> None:
    method = METHODS[name]
    Experiment(method=name, workers=1 if method.single else 4)
    assert method.summary and re.search(r"\b(19|20)\d\d\b", method.citation)

"""Execute docs/notebook.ipynb again and keep what a reader sees: printed text and pictures.

`make notebook` runs it, after a change of the notebook. tests/test_code_blocks.py executes the notebook too.
"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FILE = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
KEPT = ("image/png", "text/plain")


def main() -> None:
    """Execute the notebook in a temporary folder and write it back without progress bars and metadata."""
    notebook = nbformat.read(FILE, nbformat.NO_CONVERT)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "data" in output:
                kind = next(kind for kind in KEPT if kind in output.data)
                output.data, output.metadata = {kind: output.data[kind]}, {}
    nbformat.write(notebook, FILE)


if __name__ == "__main__":
    main()

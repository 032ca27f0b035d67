"""Execute notebooks in place, each in a fresh kernel: python notebooks/execute.py [NAME...]."""

from __future__ import annotations

import argparse
import copy
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Metadata of every notebook, without versions, which differ between machines."""
CELL_TIMEOUT = 900
"""Time limit of one cell, seconds."""


def read_notebook(path: Path) -> Any:
    """Read a notebook."""
    return nbformat.read(path, as_version=4)


def execute_notebook(notebook: Any) -> Any:
    """Return a copy with the outputs of a new execution, without times and other traces of the machine.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = copy.deepcopy(notebook)
    # Files that the notebook writes, to its working directory or to temporary folders, are removed afterwards.
    with TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources=resources)
        client.execute(env={**os.environ, "TMPDIR": folder})
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def main() -> None:
    """Execute the named notebooks, or all."""
    parser = argparse.ArgumentParser(description="Execute notebooks in place.")
    parser.add_argument("names", nargs="*", help="without .ipynb; all notebooks by default")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(execute_notebook(read_notebook(path)), path)
        print(path.name)


if __name__ == "__main__":
    main()

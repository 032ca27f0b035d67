"""Execute notebooks in place, each from its beginning in a kernel of its own: python notebooks/execute.py [NAME...]."""

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
"""All that a notebook says of where it was executed; versions would differ on every machine."""
PATIENCE = 900
"""Seconds that one cell may take."""


def read(path: Path) -> Any:
    """A notebook as it stands in its file.

    Args:
        path: of the notebook.
    """
    return nbformat.read(path, as_version=4)


def executed(notebook: Any) -> Any:
    """A copy with the outputs of a fresh execution, without times and other traces of the machine.

    Args:
        notebook: with or without outputs, which stays as it is.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    fresh = copy.deepcopy(notebook)
    # What a notebook writes, in its working directory or in temporary folders of its own, goes when it is done.
    with TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(fresh, timeout=PATIENCE, kernel_name="python3", resources=resources)
        client.execute(env={**os.environ, "TMPDIR": folder})
    fresh.metadata = nbformat.from_dict(METADATA)
    for cell in fresh.cells:
        cell.metadata.pop("execution", None)
    return fresh


def main() -> None:
    """Entry point: the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description="Execute notebooks in place.")
    parser.add_argument("names", nargs="*", help="without .ipynb; all notebooks by default")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(executed(read(path)), path)
        print(path.name)


if __name__ == "__main__":
    main()

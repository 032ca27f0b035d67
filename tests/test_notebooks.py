"""The notebooks: their stored outputs are current, and their files are clean."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from execute import FOLDER, METADATA, execute_notebook, read_notebook

nbformat = pytest.importorskip("nbformat")

NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
VARIES = "varies"
"""Tag of cells whose numbers depend on the processor, because rounding errors grow during training."""
MAX_BYTES = 400_000
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|Users)/|0x[0-9a-f]{6,}|\x1b\[")

# Holds after training on every machine; the names are those of the notebook.
TRAINING_CHECKS = """
assert losses[-1] < 0.25 * losses[0], losses
for name in ("logical_f1", "spatial_f1"):
    assert after[name] > 0.8, (name, after[name])
"""


def _path(name: str) -> Path:
    return FOLDER / f"{name}.ipynb"


def _texts(cell: Any) -> list[str]:
    """Return the words of the text outputs: line breaks depend on the display, the parts of a stream on time."""
    outputs = [output for output in cell.get("outputs", []) if output["output_type"] != "display_data"]
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs).split()


def _count_images(cell: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_current(name: str) -> None:
    stored = read_notebook(_path(name))
    checked = read_notebook(_path(name))
    if name == "train_on_phantoms":
        checked.cells.append(nbformat.v4.new_code_cell(TRAINING_CHECKS, id="checks"))
    executed = execute_notebook(checked)
    for old, new in zip(stored.cells, executed.cells, strict=False):
        assert _count_images(new) == _count_images(old), old.source
        if VARIES not in old.metadata.get("tags", []):
            assert _texts(new) == _texts(old), old.source


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_without_traces_of_the_machine_and_with_valid_links(name: str) -> None:
    notebook = read_notebook(_path(name))
    nbformat.validate(notebook)
    assert _path(name).stat().st_size < MAX_BYTES
    assert dict(notebook.metadata) == METADATA
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"] == []
    assert MACHINE.findall(json.dumps(outputs)) == []
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert [target for target in re.findall(r"\]\(([^)#]+)\)", prose) if not (FOLDER / target).exists()] == []
    assert re.match(r"# .*\?$", prose.splitlines()[0])


def test_failing_notebook_is_an_error() -> None:
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute_notebook(notebook)

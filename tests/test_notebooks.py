"""The notebooks: executed anew they give the figures that stand in them, in time, and their files are clean."""

from __future__ import annotations

import copy
import json
import re
import resource
from pathlib import Path
from typing import Any

import pytest
from execute import FOLDER, METADATA, executed, read

nbformat = pytest.importorskip("nbformat")

PATHS = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
QUESTIONS = {"compare_metrics_and_judges", "score_your_reports", "train_on_phantoms", "what_radfact_sees"}
VARIES = "varies"
"""Tag of cells whose figures depend on the processor: what a network learns differs in the last digit, then in all."""
SECONDS = 2 * 120
"""Two minutes of two cores."""
LARGEST = 400_000
MACHINE = re.compile(r"/(?:home|root|tmp|work|usr|Users)/|0x[0-9a-f]{6,}|\x1b\[")

# What training has to have done, wherever it runs; the names are those of the notebook.
LEARNED = """
assert losses[-1] < 0.25 * losses[0], losses
for figure in ("logical_f1", "spatial_f1"):
    assert after[figure] > before[figure] + 0.2, (figure, before[figure], after[figure])
"""


def _texts(cell: Any) -> list[list[str]]:
    """The words of a cell's text outputs; how a table is broken into lines is the display's affair."""
    return [
        (output["text"] if output["output_type"] == "stream" else output["data"].get("text/plain", "")).split()
        for output in cell.get("outputs", [])
        if output["output_type"] != "display_data"
    ]


def _pictures(cell: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _with_cell(notebook: Any, code: str) -> Any:
    longer = copy.deepcopy(notebook)
    longer.cells.append(nbformat.v4.new_code_cell(code, id="checks"))
    return longer


def test_there_is_a_notebook_for_each_question() -> None:
    assert PATHS.keys() == QUESTIONS


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_a_notebook_says_the_same_when_it_is_executed_anew(name: str) -> None:
    kept = read(PATHS[name])
    checks = LEARNED if name == "train_on_phantoms" else "pass"
    started = _seconds()
    fresh = executed(_with_cell(kept, checks))
    # Seconds of work, not of the clock: other programs may have the processors at the same time.
    assert _seconds() - started < SECONDS
    for cell, again in zip(kept.cells, fresh.cells, strict=False):
        assert _pictures(again) == _pictures(cell), cell.source
        if VARIES not in cell.metadata.get("tags", []):
            assert _texts(again) == _texts(cell), cell.source


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_a_notebook_s_file_is_small_and_holds_nothing_of_the_machine(name: str) -> None:
    path = PATHS[name]
    notebook = read(path)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    assert dict(notebook.metadata) == METADATA
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"] == []
    assert MACHINE.findall(json.dumps(outputs)) == []


@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_a_notebook_explains_each_step_and_links_lead_somewhere(name: str) -> None:
    cells = read(PATHS[name]).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert cells[0].source.splitlines()[0].endswith("?")
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert (FOLDER / target).exists(), target


def test_a_notebook_that_fails_is_not_written(tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    nbformat.write(notebook, tmp_path / "fails.ipynb")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(read(tmp_path / "fails.ipynb"))

"""The notebook says what its code prints."""

import contextlib
import io
import json

import pytest


def test_the_notebook_shows_what_its_code_prints(root, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    matplotlib.use("Agg")
    notebook = json.loads((root / "examples/notebooks/papers.ipynb").read_text())
    monkeypatch.chdir(root / "examples/notebooks")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert cells
    names = {}
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, f"papers.ipynb cell {number}", "exec"), names)
        streams = [out for out in cell["outputs"] if out["output_type"] == "stream"]
        kept = "".join(line for out in streams for line in out["text"])
        assert printed.getvalue() == kept, f"run the notebook again: {source}"
    assert any("image/png" in out.get("data", {}) for cell in cells for out in cell["outputs"])

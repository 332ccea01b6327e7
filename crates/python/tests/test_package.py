"""The package itself: types, documentation, and that the documents are true."""

import doctest
import inspect
import re
import subprocess
import sys

import pytest

import punctual


def test_the_version_is_that_of_the_workspace(root):
    manifest = (root / "Cargo.toml").read_text()
    version = re.search(r'^\[workspace\.package\]\nversion = "(.*)"', manifest, re.MULTILINE)
    assert punctual.__version__ == version.group(1)


def test_everything_public_is_documented():
    for name in punctual.__all__:
        thing = getattr(punctual, name)
        if name == "__version__":
            continue
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items():
            if callable(value) and not member.startswith("_"):
                assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


@pytest.mark.parametrize("document", ["docs/python.md", "crates/python/README.md"])
def test_what_documents_show_is_what_happens(root, document, monkeypatch):
    monkeypatch.chdir(root)
    text = (root / document).read_text()
    examples = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, document, document, 0)
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(["mypy", "--strict", "--package", "punctual"], id="mypy"),
        pytest.param(["mypy.stubtest", "punctual", "--ignore-missing-stub"], id="stubtest"),
    ],
)
def test_types_are_those_of_the_code(check, tmp_path):
    pytest.importorskip("mypy")
    ran = subprocess.run(
        [sys.executable, "-m", *check], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

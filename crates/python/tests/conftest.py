"""What the tests share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def networks():
    """The folder of example networks."""
    return ROOT / "examples" / "networks"

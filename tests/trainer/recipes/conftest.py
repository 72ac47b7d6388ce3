"""A laboratory whose dataset are molecules."""

import pytest

from tests.trainer.lab import Lab
from tests.trainer.recipes.molecules import write


@pytest.fixture
def molecules(lab: Lab) -> Lab:
    write(lab.data)
    return lab

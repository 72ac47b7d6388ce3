"""What an agent makes of an error of the store."""

import pytest

from app.errors import FileLocked, Unavailable
from worker.agent.boundary import Boundary


def refuse(error):
    raise error("It could not be had.")


@pytest.mark.parametrize("is_on_one_host", [True, False])
@pytest.mark.parametrize("error", [FileLocked, Unavailable])
def test_trainers_hold_on_for_a_locked_file_of_this_host_alone(error, is_on_one_host):
    """Across a network the run's lock is another host's as well, or nobody's."""
    boundary = Boundary(database_is_on_one_host=is_on_one_host)
    with boundary.outage():
        refuse(error)
    holds_on = error is FileLocked and is_on_one_host
    assert (boundary.is_away, boundary.is_file_locked) == (True, holds_on)
    with boundary.store():
        pass
    assert (boundary.is_away, boundary.is_file_locked) == (False, False)

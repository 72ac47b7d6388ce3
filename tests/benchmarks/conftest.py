"""What benchmarks change or start is put back and ended, as after tests of what they measure."""

from tests.trainer.conftest import _one_thread
from tests.trainer_data.conftest import _no_thread_is_left

__all__ = ["_no_thread_is_left", "_one_thread"]

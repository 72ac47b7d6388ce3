"""Which reason and sentence an attempt's end gets."""

import errno
import signal

import pytest

from app.lifecycle import Intent, Reason
from worker.agent.classify import Evidence, classify

DONE = {"reason": "completed", "message": "All steps are done.", "result": {"last": {"step": 9}}}
LOADER_KILLED = {"reason": "killed", "message": "A loader process (7) was killed by SIGKILL."}
SAVED = {"reason": "interrupted", "message": "Stopped at a step boundary.", "result": None}


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Evidence(end=DONE, returncode=0), Reason.completed),
        (Evidence(end=DONE, returncode=-signal.SIGSEGV), Reason.completed),
        (Evidence(end=DONE, returncode=0, asked="stop", drained=True), Reason.completed),
        (Evidence(end={"reason": "nonfinite"}, returncode=1, asked="stop"), Reason.nonfinite),
        (Evidence(busy="held"), Reason.slot_busy),
        (Evidence(returncode=-signal.SIGKILL, hang_seconds=600), Reason.hang),
        (Evidence(end=SAVED, returncode=0, asked="stop", drained=True), Reason.drained),
        (Evidence(end=SAVED, returncode=0, asked="stop"), Reason.interrupted),
        (Evidence(end=LOADER_KILLED, returncode=0, asked="stop", drained=True), Reason.drained),
        (Evidence(end=DONE, returncode=0, asked="stop", needed_by=7), Reason.completed),
        (Evidence(end=SAVED, returncode=0, asked="stop", needed_by=7), Reason.preempted),
        (Evidence(end=LOADER_KILLED, returncode=0, asked="stop", needed_by=7), Reason.preempted),
        (Evidence(returncode=-9, started=True, asked="stop", needed_by=7), Reason.preempted),
        (Evidence(asked="stop", needed_by=7), Reason.preempted),
        (Evidence(end=SAVED, asked="stop", drained=True, needed_by=7), Reason.drained),
        (Evidence(end=LOADER_KILLED, returncode=0, lapsed=True), Reason.interrupted),
        (Evidence(end=SAVED, returncode=0), Reason.interrupted),
        (Evidence(asked="stop"), Reason.interrupted),
        (Evidence(returncode=-signal.SIGKILL, asked="kill"), Reason.killed),
        (Evidence(returncode=-signal.SIGKILL, oom_kills=1), Reason.host_oom),
        (Evidence(returncode=-signal.SIGKILL), Reason.killed),
        (Evidence(returncode=None, started=True), Reason.killed),
        (Evidence(launcher_returncode=-signal.SIGKILL), Reason.killed),
        (Evidence(launcher_returncode=1), Reason.crashed),
        (Evidence(launcher_returncode=0), Reason.interrupted),
        (Evidence(end=LOADER_KILLED, returncode=1), Reason.killed),
        (Evidence(end=LOADER_KILLED, returncode=1, oom_kills=1), Reason.host_oom),
        (Evidence(fault=OSError(errno.EIO, "I/O error"), asked="stop"), Reason.crashed),
        (Evidence(fault=OSError(errno.ENOSPC, "full")), Reason.disk_full),
        (Evidence(fault=OSError(errno.EROFS, "read-only")), Reason.checkpoint_write_error),
        (Evidence(fault=OSError(errno.EACCES, "denied")), Reason.checkpoint_write_error),
        (Evidence(returncode=-signal.SIGTERM), Reason.interrupted),
        (Evidence(returncode=-signal.SIGSEGV), Reason.crashed),
        (Evidence(returncode=1), Reason.crashed),
        (Evidence(returncode=0), Reason.crashed),
        (Evidence(end={"reason": "a word of the future"}, returncode=1), Reason.crashed),
    ],
)
def test_reason(seen, reason):
    assert classify(seen).reason is reason


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, Reason.checkpoint_error),
        ({"reason": "checkpoint_write_error", "message": "No."}, Reason.checkpoint_error),
        ({"reason": "checkpoint_unusable", "message": "No."}, Reason.checkpoint_error),
        ({"reason": "trainer_error", "message": "No."}, Reason.checkpoint_error),
        ({"reason": "nonfinite", "message": "No."}, Reason.nonfinite),
        (DONE, Reason.completed),
    ],
)
def test_what_may_come_of_an_artifact_root_that_is_away_is_told_so(end, expected):
    found = classify(Evidence(end=end, returncode=1, last_log_line="No.", root_was_away=True))
    assert found.reason is expected
    assert ("artifact root was away" in found.message) == (expected is Reason.checkpoint_error)
    assert expected is not Reason.checkpoint_error or found.message.endswith("No.")


@pytest.mark.parametrize("intent", Intent)
def test_that_it_is_tried_again_is_said_of_what_shall_go_on(intent):
    message = classify(Evidence(returncode=1, root_was_away=True, intent=intent)).message
    assert message.startswith("The artifact root was away when the attempt ended.")
    assert ("tried again" in message) == (intent is Intent.run)
    assert ("no retry" in message) == (intent is Intent.run)
    assert "exit code 1" in message


def test_a_crash_names_the_signal_and_the_last_line_of_the_log():
    seen = Evidence(returncode=-signal.SIGSEGV, last_log_line="cannot map file")
    assert "SIGSEGV" in classify(seen).message
    assert "cannot map file" in classify(seen).message


def test_a_lease_that_lapsed_is_no_fault_of_the_trainer_however_it_ended():
    saved = classify(Evidence(end=SAVED, returncode=0, lapsed=True))
    killed = classify(Evidence(returncode=-signal.SIGKILL, lapsed=True))
    assert (saved.reason, killed.reason) == (Reason.interrupted, Reason.interrupted)
    assert "out of reach" in saved.message
    assert saved.message.endswith("the trainer saved and ended.")
    assert killed.message.endswith("the trainer ended without a new checkpoint.")


def test_a_pause_is_called_so():
    saved = Evidence(end=SAVED, returncode=0, asked="stop", started=True)
    assert classify(saved).message == "The trainer was asked to stop; it saved and ended."
    saved.intent = Intent.pause
    assert classify(saved).message == "The trainer was asked to pause; it saved and ended."
    not_begun = Evidence(asked="stop", intent=Intent.pause)
    assert classify(not_begun).message == "Paused before the trainer had started."


def test_a_grace_time_that_was_not_enough_is_told():
    seen = Evidence(returncode=-signal.SIGKILL, asked="stop", grace_seconds=60)
    assert "60 seconds" in classify(seen).message


def test_a_script_is_called_so():
    killed = Evidence.of({"recipe": {"kind": "script"}}, 60)
    killed.asked, killed.returncode, killed.started = "kill", -signal.SIGKILL, True
    assert classify(killed).message == "The script was killed."
    killed.asked, killed.hang_seconds = None, 600
    assert classify(killed).message == "The script made no progress for 600 seconds and was ended."
    for code, told in (
        (-signal.SIGKILL, "The runner of the script was killed by SIGKILL, not by this worker."),
        (-signal.SIGTERM, "The runner of the script was ended by SIGTERM as it started."),
        (1, "The runner of the script ended with exit code 1 without saying why."),
        (None, "The launcher was killed, and the script with it."),
    ):
        died = Evidence.of({"recipe": {"kind": "script"}}, 60)
        died.returncode = code
        assert classify(died).message == told
    killed = Evidence.of({"recipe": {"kind": "sequence"}}, 60)
    killed.asked, killed.returncode, killed.started = "kill", -signal.SIGKILL, True
    assert classify(killed).message == "The trainer was killed."

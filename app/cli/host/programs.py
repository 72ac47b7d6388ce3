"""What a program says when the doctor asks it."""

import subprocess


def ask(command: list[str], seconds: float) -> tuple[int, str]:
    """Its exit code, and what it printed: of one that failed its errors before its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {seconds} s"
    said, errors = done.stdout.strip(), done.stderr.strip()
    return done.returncode, (errors or said) if done.returncode else (said or errors)

"""How `stoker` starts: with everything it needs, and without a search for garbage meanwhile."""

from app.loading import unsearched


def main() -> None:
    """Of the console script (`stoker.command`) and of `python -m app.cli`."""
    with unsearched():
        # Imported only now: all that it brings is loaded without that search.
        from app.cli.main import main as run
    run()

"""How `stoker` starts: with everything it needs, and without a search for garbage meanwhile."""

import gc


def main() -> None:
    """The console script."""
    gc.disable()
    # Imported only now, as in the trainer: a fifth of the start would be that search, and imports
    # leave next to no garbage.
    from app.cli.main import main as run

    gc.freeze()
    gc.enable()
    run()

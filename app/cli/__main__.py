"""`python -m app.cli`: the same as the console script `stoker`."""

from app.cli.start import main

if __name__ == "__main__":
    main()

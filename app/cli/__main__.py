"""`python -m app.cli`: the same as the console script `stoker`."""

from app.cli.main import main

if __name__ == "__main__":
    main()

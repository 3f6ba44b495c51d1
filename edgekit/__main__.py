"""`python -m edgekit`: the command line."""

from edgekit.tools.cli import main

if __name__ == "__main__":
    main()

"""Let `python -m aot` be the command `aot`."""

from aot.cli import main

if __name__ == "__main__":
    main()

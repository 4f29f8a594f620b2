"""Start the command `aot`, or `python -m aot`: Ctrl-C ends it in good order from its first import on."""

import signal


def main() -> None:
    """Run the command and exit."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Until somebody watches for it, Ctrl-C ends the process as it ends a C program: without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from aot.cli.interrupt import watch

    with watch():
        from aot.cli.main import main as command

        command(prog_name="aot")


if __name__ == "__main__":
    main()

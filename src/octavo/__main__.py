"""The command ``octavo``, which ``python -m octavo`` is too."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it in silence while its modules are still read."""
    try:
        from octavo.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

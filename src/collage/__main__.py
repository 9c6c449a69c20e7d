"""``python -m collage`` is the command ``collage``."""

from collage.cli import main

if __name__ == "__main__":
    main()

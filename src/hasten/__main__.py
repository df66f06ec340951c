"""`python -m hasten`."""

import os
import sys

if __name__ == "__main__":
    # `-m` puts the current folder first: a click.py of the user's there isn't meant for us.
    if sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]
    from hasten.commands import main

    main()

"""`python -m hasten`."""

from hasten.commands import main

if __name__ == "__main__":
    main()

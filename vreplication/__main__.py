"""`python -m vreplication` is `vreplication`."""

from vreplication.cli.main import main

if __name__ == "__main__":
    main()

"""`python -m localspec` is the same as `localspec`."""

from localspec.cli import main

if __name__ == "__main__":
    main()

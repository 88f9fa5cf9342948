"""`python -m dali_feed.cli`."""

from dali_feed.cli import main

main()

"""`dali-feed bench`: a file for each of its commands. What a command needs is imported when it runs."""

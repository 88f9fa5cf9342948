"""Finding `Tuning` for a machine and a user's own data, and keeping it.

Never: a setting that changes a batch; a feed, which it is handed as a function to race.
"""

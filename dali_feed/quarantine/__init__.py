"""Quarantine: a record that cannot be used is counted, held to a limit, and written where it can be read again.

Never: an engine.
"""

"""Quarantine: what becomes of a record that cannot be used: counted, kept to a budget, put where it can be read again.

Never: an engine.
"""

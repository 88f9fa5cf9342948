"""Storage: the bytes of files, wherever they lie.

Never: what the bytes mean, records, plans.
"""

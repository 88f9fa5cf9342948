"""Seeing a run that goes on: an endpoint with its numbers, reporters, and the view that reads them.

Never: what changes a batch, or what the training loop has to wait for.
"""

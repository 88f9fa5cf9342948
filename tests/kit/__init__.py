"""What tests share, one subject a file: images, sources, servers, processes.

It alone may touch internals for a contract test, each with its reason in a comment.
"""

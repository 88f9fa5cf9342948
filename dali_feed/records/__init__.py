"""Records: what a source gives, snapshots, extents, blocks, and the memory that payloads are read into.

Never: I/O, threads, an engine.
"""

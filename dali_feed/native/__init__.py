"""The few loops that are written in C, where Python's own time per record or torch's passes over memory cost too much.

The law: nothing needs them. They are compiled while the package is installed, where there is a C compiler; where there
is none, or `DALI_FEED_NATIVE=0` is set, each caller takes its own way in Python. Both give the same bytes.
"""

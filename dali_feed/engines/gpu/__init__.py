"""The work on the consumer's CUDA stream, and how batches come to the device.

Never: DALI.
"""

"""What runs on the consumer's stream, and how batches come to the device.

Never: DALI.
"""

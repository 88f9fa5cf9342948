"""The seam of a GPU: all that the product does there, but to launch a kernel, it asks of a `Device`.

Never: DALI.
"""

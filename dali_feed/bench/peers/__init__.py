"""Other loaders that take part in a bench, one file each, at the best settings known of them.

Never: what makes one of them slower than its own users would have it.
"""

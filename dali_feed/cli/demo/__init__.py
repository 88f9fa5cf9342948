"""The demo: a network learns digits from a topic, is killed in the middle of an epoch, and goes on as if it were not.

Everything in it is real: a broker, records over TCP, two bad ones among them, a process ended by SIGKILL, another
that resumes from the saved state, and a comparison of every id and pixel with the run that was never interrupted.
"""

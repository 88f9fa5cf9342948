"""How long a test waits for what must come."""

from __future__ import annotations

# Seconds. It ends what hangs and judges nothing: with six other things to do, a machine takes ten times as long.
LONG = 1200.0

"""Hints for whoever listens. Losing one delays a run by at most a sweep."""

from django.dispatch import Signal

# Sent with run_id (UUID) after commit: the run has something to do.
run_ready = Signal()

# Sent after commit: there is a message to relay.
message_stored = Signal()

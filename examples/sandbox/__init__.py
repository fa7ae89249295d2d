"""A sandbox of three outside services: payments, carrier, mail.

One process, its own storage, no Django. Each service honours idempotency keys, refuses stale
fences and writes every request into a ledger; switches make it misbehave in the ways real services
do. What the ledger says happened is the judge of every crash test.
"""

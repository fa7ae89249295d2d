"""Who has to agree before the example shop charges a customer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from approvals import policies
from approvals.policies import Policy
from durable.canonical import JSON


def is_large(parameters: Mapping[str, JSON]) -> bool:
    """Over 5,000 of whatever currency. What is no plain amount raises, and so asks a person."""
    return not 0 <= Decimal(parameters["amount"]) <= 5000


policies.register(
    Policy(
        name="large-charge",
        effect="charge",
        when=is_large,
        decide_within=timedelta(hours=24),
        valid_for=timedelta(hours=1),
        sentence="Charges over 5,000 need one approver who did not request them",
    )
)

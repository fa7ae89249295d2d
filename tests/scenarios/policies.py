"""Who has to agree before a scenario pays a large amount."""

from datetime import timedelta
from decimal import Decimal

from approvals import policies
from approvals.policies import Policy

for _effect in ("scenario_pay", "scenario_pay_again"):
    policies.register(
        Policy(
            name=f"{_effect}-large",
            effect=_effect,
            when=lambda parameters: not 0 <= Decimal(parameters["amount"]) <= 5000,
            decide_within=timedelta(hours=1),
            valid_for=timedelta(minutes=10),
            sentence="Payments over 5,000 need one approver who did not request them",
        )
    )

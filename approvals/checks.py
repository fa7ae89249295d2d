"""What `manage.py check` says about policies, before anything runs unguarded."""

from __future__ import annotations

from typing import Any

from django.core.checks import Error

from approvals import policies
from durable import registry


def policies_guard_something(**kwargs: Any) -> list[Error]:
    """A policy with a misspelt effect would never ask, and nobody would notice."""
    return [
        Error(
            f"Policy {policy.name!r} guards the effect {policy.effect!r}, which no app declares.",
            hint="Correct the name, or remove the policy.",
            id="approvals.E001",
        )
        for policy in policies.registered()
        if registry.effect(policy.effect) is None
    ]

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules


class ApprovalsConfig(AppConfig):
    name = "approvals"

    def ready(self) -> None:
        """Find every app's policies, guard the engine's effects with them, end what is overdue."""
        from approvals.checks import policies_guard_something
        from approvals.decisions import expire_overdue
        from approvals.gate import ApprovalGate
        from durable import gate, sweeper

        autodiscover_modules("policies")
        gate.register(ApprovalGate())
        sweeper.register("approvals.expired", expire_overdue)
        checks.register(policies_guard_something)

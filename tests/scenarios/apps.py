"""Scenarios as a Django app: found by settings, armed only in processes that a test started."""

from dataclasses import replace

from django.apps import AppConfig


class ScenariosConfig(AppConfig):
    name = "tests.scenarios"

    def ready(self) -> None:
        from tests.scenarios import crashing

        _hurry_the_shop()
        if crashing.folder() is not None:
            crashing.install()


def _hurry_the_shop() -> None:
    """The example shop waits half a minute for a late call; a test cannot, and the TTL is short."""
    from durable import registry
    from examples import workflows

    for effect in (workflows.charge, workflows.create_shipment, workflows.send_confirmation):
        effect.definition = replace(effect.definition, timeout=3, settle=2)
        registry.add_effect(effect.definition)

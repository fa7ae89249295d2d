from tests.engine_fixtures import (
    alone,
    checked,
    clock,
    engine_connections,
    hints,
    large_payments_ask,
)

__all__ = ["alone", "checked", "clock", "engine_connections", "hints", "large_payments_ask"]

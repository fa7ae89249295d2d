from tests.engine_fixtures import alone, checked, clock, large_payments_ask

__all__ = ["alone", "checked", "clock", "large_payments_ask"]

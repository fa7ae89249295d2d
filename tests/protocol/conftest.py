from tests.engine_fixtures import alone, clock, large_payments_ask

__all__ = ["alone", "clock", "large_payments_ask"]

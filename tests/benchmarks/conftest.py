from tests.engine_fixtures import alone, engine_connections, large_payments_ask

__all__ = ["alone", "engine_connections", "large_payments_ask"]

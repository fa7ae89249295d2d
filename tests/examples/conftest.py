from tests.sandbox_fixture import sandbox, sandbox_process

__all__ = ["sandbox", "sandbox_process"]

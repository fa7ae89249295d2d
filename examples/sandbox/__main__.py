"""`python -m examples.sandbox`: the sandbox without Django, for tests that start it often."""

import argparse
import sys
from pathlib import Path

from examples.sandbox.server import Sandbox


def main() -> None:
    """Serve until interrupted; print the address first."""
    parser = argparse.ArgumentParser(prog="sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=8090, help="0 takes a free port")
    parser.add_argument("--data", type=Path, required=True, help="SQLite file, made if missing")
    options = parser.parse_args()
    run(options.data, options.port)


def run(data: Path, port: int) -> None:
    """Serve the sandbox on 127.0.0.1 until KeyboardInterrupt; OSError if the port is taken."""
    data.parent.mkdir(parents=True, exist_ok=True)
    sandbox = Sandbox(data, port)
    sys.stdout.write(f"Sandbox of payments, carrier and mail: {sandbox.url}\n")
    sys.stdout.flush()
    try:
        sandbox.serve()
    except KeyboardInterrupt:
        pass
    finally:
        sandbox.desk.close()
        sandbox.store.close()


if __name__ == "__main__":
    main()

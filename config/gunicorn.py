"""The web server: `gunicorn config.wsgi --config python:config.gunicorn --bind ...`."""

from config import leash

worker_class = "gthread"
workers = 2
threads = 8
graceful_timeout = 3
# Imported once, before the workers are forked.
preload_app = True
accesslog = "-"
# It would write to the home folder, outside of the project.
control_socket_disable = True


def post_fork(server: object, worker: object) -> None:
    """Let a worker die with its master, whose successor needs the port."""
    leash.hold()

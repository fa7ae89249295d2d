"""The composition root: settings, URLs, the Celery application, and `manage.py up`."""

from config.celery import app as celery_app

__all__ = ["celery_app"]

"""Every setting, and the only place that reads the environment.

The same file serves production, `manage.py up` and the tests; what differs between them is a
variable named here. Production needs SECRET_KEY, DATABASE_URL, BROKER_URL and ALLOWED_HOSTS.
"""

from datetime import timedelta
from pathlib import Path

import environ
from csp.constants import NONE, SELF

from durable.statuses import InterruptStatus, RunStatus

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = env.bool("DEBUG", default=False)
# Plain http on one's own machine (`manage.py up`, tests): cookies and redirects that insist on
# https would lock everybody out. Never set it where anyone else can reach the server.
INSECURE_HTTP = env.bool("INSECURE_HTTP", default=DEBUG)

# Only DEBUG has defaults: a public default would sign sessions that anyone can forge.
SECRET_KEY: str = env("SECRET_KEY", default="only-for-debugging" if DEBUG else environ.Env.NOTSET)
DATABASE_URL: str = env(
    "DATABASE_URL", default="postgresql://127.0.0.1/standfast" if DEBUG else environ.Env.NOTSET
)
BROKER_URL: str = env("BROKER_URL", default="redis://127.0.0.1:6379/0")

ALLOWED_HOSTS: list[str] = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1"])
CSRF_TRUSTED_ORIGINS: list[str] = env.list("CSRF_TRUSTED_ORIGINS", default=[])

# The engine ---------------------------------------------------------------------------------

_lease_ttl = env.float("DURABLE_LEASE_TTL", default=15.0)

DURABLE = {
    # Seconds a worker owns a run without renewing; a dead worker's run waits this long.
    "LEASE_TTL": _lease_ttl,
    # Seconds before the end of the TTL at which a worker considers its own lease lost.
    "LEASE_MARGIN": env.float("DURABLE_LEASE_MARGIN", default=_lease_ttl / 5),
    # Seconds between two looks for work whose wake-up was lost.
    "SWEEP_INTERVAL": env.float("DURABLE_SWEEP_INTERVAL", default=5.0),
    # Claims in a row without progress after which a run waits for an operator.
    "MAX_ATTEMPTS": env.int("DURABLE_MAX_ATTEMPTS", default=5),
    # How often "still unknown" is asked again before a person is asked.
    "RECONCILE_ATTEMPTS": env.int("DURABLE_RECONCILE_ATTEMPTS", default=5),
    # Off: every cheap step waits for the disk, too.
    "RELAXED_COMMITS": env.bool("DURABLE_RELAXED_COMMITS", default=True),
    # Off behind a transaction-pooling PgBouncer older than 1.21.
    "PREPARED_STATEMENTS": env.bool("DURABLE_PREPARED_STATEMENTS", default=True),
}
# The tenant of everything that does not name another.
TENANT: str = env("TENANT", default="default")
# The make-believe payment, mail and stock services of examples/.
SANDBOX_URL: str = env("SANDBOX_URL", default="http://localhost:8090")

# Applications -------------------------------------------------------------------------------

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "csp",
    "django_htmx",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "durable",
    "approvals",
    "dashboard",
    "examples",
    "config",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"

# PostgreSQL ---------------------------------------------------------------------------------

DATABASES = {
    "default": {
        **environ.Env.db_url_config(DATABASE_URL),
        # Kept for the life of a web thread; checked first, so that a restart costs no error page.
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        # A server-side cursor does not survive a transaction pooler.
        "DISABLE_SERVER_SIDE_CURSORS": not DURABLE["PREPARED_STATEMENTS"],
        "OPTIONS": {
            "application_name": "standfast",
            "connect_timeout": 5,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            # Milliseconds, below the TTL: a worker cut off from the database must hear of it
            # before somebody else may take over its run.
            "tcp_user_timeout": int(_lease_ttl * 2 / 3 * 1000),
        },
    }
}

# Celery -------------------------------------------------------------------------------------

CELERY_BROKER_URL = BROKER_URL
# A task is acknowledged when it has ended, so that a worker's death hands it on.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Results are in PostgreSQL; nobody reads Celery's.
CELERY_TASK_IGNORE_RESULT = True
# A message is a hint and the sweep finds what it missed: publishing must never hold up a request.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_CONNECTION_TIMEOUT = 1.0
CELERY_BROKER_CONNECTION_RETRY = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # Seconds after which an unacknowledged message is delivered again.
    "visibility_timeout": env.int("BROKER_VISIBILITY_TIMEOUT", default=3600),
    "socket_connect_timeout": 1.0,
    "socket_timeout": 1.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
    "max_retries": 0,
}
# A task in flight holds a lease; losing the broker is no reason to kill it.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Celery's Django fix-up would otherwise close database connections around every task.
CELERY_DB_REUSE_MAX = 1_000_000_000

# The API ------------------------------------------------------------------------------------

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "config.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["durable.parsers.StrictJSONParser"],
    "EXCEPTION_HANDLER": "config.problems.handler",
    # OPTIONS would describe views in a second way; `?format=` is a parameter like any unknown one.
    "DEFAULT_METADATA_CLASS": None,
    "URL_FORMAT_OVERRIDE": None,
    # Guesses of passwords, per web process.
    "DEFAULT_THROTTLE_RATES": {"login": env("LOGIN_RATE", default="20/min")},
    # How many proxies of ours add to X-Forwarded-For; what a client writes there is not believed.
    "NUM_PROXIES": env.int("NUM_PROXIES", default=0),
}
REST_KNOX = {"TOKEN_TTL": timedelta(hours=env.float("TOKEN_HOURS", default=10.0))}
SPECTACULAR_SETTINGS = {
    "TITLE": "Standfast",
    "DESCRIPTION": (
        "Runs that survive crashes, and what they ask people.\n\n"
        "Bodies are strict JSON (RFC 7493): at most 1 MiB a value, 64 levels deep, no NaN, no NUL,"
        " no key twice, integers within 2^53. Times have a zone (RFC 3339). A field or parameter"
        " that an address does not name is refused. Lists are walked by `next`.\n\n"
        "Every POST may be repeated: a start by its Idempotency-Key, which holds for one workflow"
        " and is never forgotten; the others because what is on record stands.\n\n"
        "A token acts for its owner and never decides about approvals."
    ),
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_NAME_OVERRIDES": {
        "RunStatus": [status.value for status in RunStatus],
        "InterruptStatus": [status.value for status in InterruptStatus],
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "config.problems.describe",
    ],
}

# Security -----------------------------------------------------------------------------------

LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=not INSECURE_HTTP)
# Probes come from inside, in plain http.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
SECURE_HSTS_SECONDS = 0 if INSECURE_HTTP else env.int("SECURE_HSTS_SECONDS", default=31_536_000)
SECURE_HSTS_INCLUDE_SUBDOMAINS = not INSECURE_HTTP
SECURE_HSTS_PRELOAD = not INSECURE_HTTP
SESSION_COOKIE_SECURE = not INSECURE_HTTP
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_SECURE = not INSECURE_HTTP
# Not `no-referrer`: Django's CSRF check needs the Referer on https.
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Set behind a proxy that ends TLS and itself sets (and strips) X-Forwarded-Proto.
if env.bool("TRUST_FORWARDED_PROTO", default=False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    },
}

# Static files -------------------------------------------------------------------------------

STATIC_URL = "/static/"
# Hashed names need `collectstatic` first, which a test or a debugging session has not run.
HASHED_STATIC_FILES = env.bool("HASHED_STATIC_FILES", default=not DEBUG)
STATIC_ROOT = env("STATIC_ROOT", default=str(BASE_DIR / ".static")) if HASHED_STATIC_FILES else None
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if HASHED_STATIC_FILES
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = not HASHED_STATIC_FILES

# Logs: one line each, to standard output, where the process manager collects them ------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s %(process)d %(message)s"},
    },
    "handlers": {
        "stdout": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "stream": "ext://sys.stdout",
        },
    },
    "root": {"handlers": ["stdout"], "level": env("LOG_LEVEL", default="INFO")},
    # Django's own handlers would say everything twice, and mail it to ADMINS.
    "loggers": {"django": {"handlers": [], "level": "INFO", "propagate": True}},
}

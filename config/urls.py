"""The one map of addresses."""

from django.contrib import admin
from django.urls import include, path

from config import health

urlpatterns = [
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("admin/", admin.site.urls),
    path("api/v1/", include("config.api")),
    path("", include("dashboard.urls")),
]

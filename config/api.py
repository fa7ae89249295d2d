"""The one map of the API's addresses, below /api/v1/."""

from django.urls import include, path, re_path
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularJSONAPIView
from rest_framework.exceptions import NotFound
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.views import APIView

from config import tokens
from durable import requests


class Schema(SpectacularJSONAPIView):
    """The description of this API, in OpenAPI."""

    permission_classes = (IsAuthenticated,)

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        requests.query(request, requests.Nothing)


class Nowhere(APIView):
    """Any other address: a problem in JSON, not a page, and never a redirect that drops a body."""

    authentication_classes = ()
    permission_classes = ()

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound("There is nothing at this address; every address ends with a slash.")


extend_schema(exclude=True)(Nowhere)

urlpatterns = [
    path("", include("durable.api.urls")),
    path("", include("approvals.api")),
    path("auth/login/", tokens.Login.as_view()),
    path("auth/logout/", tokens.Logout.as_view()),
    path("schema/", Schema.as_view()),
    re_path(".*", Nowhere.as_view()),
]

"""The OpenAPI document against the server: requests made from it, and their answers."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from live import error_of
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from test_ollama import PLAN
from tinymodel import Scripted, byte_tokens

from kt_core.server.app import KEYED
from kt_core.server.endpoints import ENDPOINTS
from kt_core.server.openapi import PATH, document

# Requests for each endpoint; more by hand: KT_API_EXAMPLES=2000.
EXAMPLES = int(os.environ.get("KT_API_EXAMPLES", "4"))
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
]
QUICK = EXAMPLES == 4
schema = schemathesis.openapi.from_dict(document())
schema.config.phases.coverage.enabled = not QUICK  # its hundreds of cases an endpoint take most of the time


@pytest.fixture(scope="module")
def short(request):
    """A server whose answers end soon, whatever a request asks for."""
    from live import Running
    from tinymodel import tokenizer

    from kt_core.engine.engine import Engine
    from kt_core.server.state import State

    engine = Engine(Scripted(byte_tokens("Hi"), max_context=64), tokenizer())
    running = Running(State("tiny/model", engine=engine, plan=PLAN))
    yield running
    running.close()


def complete(body):
    """What no schema says: messages have contents, and a template has arguments of its own. Wrong values stay wrong."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("content") is None:
            message["content"] = "hi"
    if isinstance(body.get("chat_template_kwargs"), dict):
        del body["chat_template_kwargs"]


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=QUICK,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_requests_made_from_the_document(case, short):
    if isinstance(case.body, dict) and case.operation.path in ("/v1/chat/completions", "/apply-template"):
        complete(case.body)
    timeout = case.body.get("timeout") if isinstance(case.body, dict) else None
    if type(timeout) in (int, float) and 0 < timeout < 1:
        case.body["timeout"] = 1  # else its 504 is what was asked for
    case.call_and_validate(base_url=short.url, checks=CHECKS)


def test_every_route_is_in_the_document():
    found = {
        (method, route.path.replace(":path", ""))
        for room in KEYED
        for route in room.router.routes
        for method in route.methods - {"HEAD"}
    }
    assert found - {("GET", PATH)} == {(e.method, e.path) for e in ENDPOINTS if not e.open}


def test_the_document_is_served_behind_the_key(serve):
    server = serve(api_key="k")
    error_of(server.http.get(PATH), 401)
    served = server.http.get(PATH, headers={"Authorization": "Bearer k"}).json()
    assert served == document() and served["openapi"].startswith("3.1")
    bounds = served["components"]["schemas"]["Chat"]["properties"]["temperature"]["anyOf"][0]
    assert bounds == {"type": "number", "minimum": 0, "maximum": 2}

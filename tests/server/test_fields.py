"""The table of fields against what the official clients can send, and against what the server does with each of them."""

import anthropic.types as claude
import ollama._types as ollama
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from live import USER, error_of
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from kt_core.server import fields
from kt_core.server.anthropic_fields import Messages, Prompt
from kt_core.server.endpoints import ENDPOINTS
from kt_core.server.ollama_fields import Generate, OllamaChat, Options
from kt_core.server.openai_fields import Chat, Completion
from kt_core.server.responses_fields import Responses

CLIENTS = [
    (Chat, chat_create_params.CompletionCreateParamsBase.__annotations__),
    (Completion, completion_create_params.CompletionCreateParamsBase.__annotations__),
    (Responses, response_create_params.ResponseCreateParamsBase.__annotations__),
    (Messages, message_create_params.MessageCreateParamsBase.__annotations__),
    (Prompt, message_count_tokens_params.MessageCountTokensParams.__annotations__),
    (OllamaChat, ollama.ChatRequest.model_fields),
    (Generate, ollama.GenerateRequest.model_fields),
    (Options, ollama.Options.model_fields),
]
assert claude.Message  # the client whose parameters these are
BASES = {
    Chat: {"messages": [USER], "max_tokens": 1},
    Completion: {"prompt": "x", "max_tokens": 1},
    Responses: {"input": "x", "max_output_tokens": 1},
    Messages: {"messages": [USER], "max_tokens": 1},
    OllamaChat: {"messages": [USER], "options": {"num_predict": 1}},
    Generate: {"prompt": "x", "options": {"num_predict": 1}},
}


@pytest.mark.parametrize(("kind", "documented"), CLIENTS, ids=[kind.__name__ for kind, _ in CLIENTS])
def test_every_field_that_clients_document_is_in_the_table(kind, documented):
    known = {*kind.model_fields, *kind.refused, *kind.harmless}
    assert not set(documented) - known


def path_of(kind):
    return next(endpoint.path for endpoint in ENDPOINTS if endpoint.body is kind)


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_what_the_table_says_happens(server, kind):
    """Refused fields are a 400 that names them, with any value but those that ask for nothing; ignored ones are listed."""
    base = BASES[kind]
    for name, accepted in kind.refused.items():
        response = server.http.post(path_of(kind), json={**base, name: {"not": "nothing"}})
        assert response.status_code == 400 and name in response.text, name
        if name == "tool_choice":
            continue  # what is accepted there is honoured
        for value in accepted:
            response = server.http.post(path_of(kind), json={**base, name: value})
            assert response.status_code == 200 and "x-kt-ignored" not in response.headers, (name, value)
    for name in set(kind.harmless) - set(kind.model_fields):
        response = server.http.post(path_of(kind), json={**base, name: "x"})
        assert response.status_code == 200 and response.headers["x-kt-ignored"] == name


def test_the_same_number_is_the_context_everywhere(ask, server):
    """Users of other servers got a fraction of the context that they were told."""
    from test_ollama import PLAN

    running = ask("Hi", plan=PLAN)
    get = lambda path: running.http.get(path).json()  # noqa: E731
    context = get("/health")["context"]
    shown = running.http.post("/api/show", json={}).json()["model_info"]["qwen3_moe.context_length"]
    told = [get("/v1/models")["data"][0]["context_length"], get("/api/ps")["models"][0]["context_length"], shown]
    told += [get("/v1/kt/info")["engine"]["context"]]
    assert told == [context] * 4
    message = error_of(running.complete(prompt=[5] * context), 400, code="context_length_exceeded")
    assert str(context) in message
    assert running.complete(prompt=[5] * (context - 1), max_tokens=1).status_code == 200


@pytest.mark.parametrize("limit", [0, -1, 1.5, "5", True])
def test_limits_that_are_none(server, limit):
    for kind, name in ((Chat, "max_tokens"), (Responses, "max_output_tokens"), (Messages, "max_tokens")):
        assert server.http.post(path_of(kind), json={**BASES[kind], name: limit}).status_code == 400
    if limit != -1:
        body = {"messages": [USER], "options": {"num_predict": limit}}
        assert server.http.post("/api/chat", json=body).status_code == 400


def test_the_tables_of_the_page_are_up_to_date():
    text = fields.FILE.read_text(encoding="utf-8")
    assert text == fields.page(text), "run: python -m kt_core.server.fields --write"
    assert not [endpoint.path for endpoint in ENDPOINTS if f"{endpoint.method} {endpoint.path}`" not in text]


def test_each_note_is_of_a_field():
    """A field that went leaves no words behind."""
    known = {name for endpoint in ENDPOINTS if endpoint.body for name in endpoint.body.model_fields}
    assert set(fields.NOTES) <= known | set(Options.model_fields) | {"response_format", "tool_choice"}

"""From a request to the prompt's token ids, with the model's own chat template."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jinja2
import jinja2.meta

from kt_core.engine import templates
from kt_core.errors import UsageError
from kt_core.messages import t
from kt_core.types import Request

# Names that a template reads but a caller does not set: apply_chat_template and its environment provide them.
_PROVIDED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"raise_exception", "strftime_now", "namespace", "dict", "range", "cycler", "joiner", "lipsum"}
    | {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}
)
_GENERATION_TAG = re.compile(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}")


# Characters for each token of room that are looked at first: twice what a token of common text has.
_CHARACTERS = 8
# Tokens at a prompt's end that show how its template lets an answer begin.
_END = 32


def plain_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer, set once to neither cut nor pad what it encodes: from then on threads may share it.

    Its own call would set that anew each time, which fails while another thread encodes.
    """
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        backend.no_truncation()
        backend.no_padding()
    return tokenizer


def render(tokenizer: Any, request: Request, limit: int = sys.maxsize) -> list[int]:
    """The prompt's token ids. `tokenizer` has gone through plain_tokenizer; safe from several threads at once.

    Raises UsageError when the model has no chat template, when the template refuses the messages
    (with its words), for tools or an argument that the template does not read, for an empty prompt, and for
    a text that cannot be below `limit` tokens; a text that is far longer is not read to its end.
    """
    if request.tokens is not None:
        ids = list(request.tokens)
    elif request.text is not None:
        ids = _encode(tokenizer, request.text, True, limit)
    else:
        # The template writes the begin-of-text token itself where the model wants one.
        ids = _encode(tokenizer, chat_text(tokenizer, request), False, limit)
    if not ids:
        raise UsageError("engine.empty_prompt")
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and request.text is not None and ids[:2] == [bos, bos] else ids


def chat_text(tokenizer: Any, request: Request) -> str:
    """The messages as the template writes them. Errors as for `render`."""
    try:
        template = tokenizer.get_chat_template(tools=list(request.tools) or None)
    except ValueError as e:
        raise UsageError("engine.no_chat_template") from e
    _check_arguments(template, request.template_args)
    if request.tools and "tools" not in names_read(template):
        raise UsageError("engine.no_tools")
    return templates.render(
        conversations=[[_plain(message) for message in request.messages or ()]],
        tools=list(request.tools) or None,
        chat_template=template,
        add_generation_prompt=not request.continue_final,
        continue_final_message=request.continue_final,
        **{**tokenizer.special_tokens_map, **request.template_args},
    )


def all_templates(tokenizer: Any) -> list[str]:
    """All chat templates of the model."""
    template = getattr(tokenizer, "chat_template", None)
    return list(template.values()) if isinstance(template, dict) else [template] if template else []


def prompt_end(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of a prompt's last tokens: enough for what a template writes last."""
    return decode(tokenizer, ids[-_END:])


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of tokens that the tokenizer has, special ones included."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def encode(tokenizer: Any, text: str, special: bool) -> list[int]:
    """The ids of a text, with the tokens that the tokenizer puts around one where `special` is set. Raises UsageError."""
    return _ids(tokenizer, text, special)


class _Names(jinja2.meta.TrackingCodeGenerator):
    """Finds names, and computes no constants meanwhile: `'x' * 10**10` is one."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.optimizer = None

    def _output_child_to_const(self, *_: Any) -> str:
        raise jinja2.nodes.Impossible

    def visit_EvalContextModifier(self, *_: Any) -> None:
        """`autoescape`, whose argument names nothing that matters."""


@cache
def template_arguments(template: str) -> frozenset[str]:
    """The names that a caller may set for a chat template: those it reads and nobody else provides."""
    return names_read(template) - _PROVIDED


@cache
def names_read(template: str) -> frozenset[str]:
    """The names that a chat template reads. Raises jinja2.TemplateError for a text that is no template."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])
    found = _Names(environment)
    found.visit(environment.parse(_GENERATION_TAG.sub("", template)))
    return frozenset(found.undeclared_identifiers)


def _check_arguments(template: str, names: Iterable[str]) -> None:
    known = template_arguments(template) if names else frozenset()
    unknown = sorted(set(names) - known)
    if unknown:
        raise UsageError("engine.template_args", names=", ".join(unknown), known=", ".join(sorted(known)) or "-")


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: no null content, and tool-call arguments as objects, not as JSON text."""
    message = {**message, "content": message.get("content") or ""}
    calls = message.get("tool_calls")
    if calls:
        message["tool_calls"] = [{**call, "function": _parsed(call.get("function") or {})} for call in calls]
    return message


def _parsed(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            return {**function, "arguments": json.loads(arguments or "{}")}
        except (ValueError, RecursionError):  # no JSON, or nested too deep
            return function
    return function


def _encode(tokenizer: Any, text: str, special: bool, limit: int) -> list[int]:
    """The ids of the whole text. Raises UsageError for one of `limit` tokens or more that is long by far.

    Prefixes of growing length are tried, so the work is bounded by what fits. Tokens at the cut may be other ones
    than in the whole, which is why only a prefix of twice the limit counts as proof.
    """
    length = _CHARACTERS * limit
    while length < len(text):
        if len(_ids(tokenizer, text[:length], special)) >= 2 * limit:
            raise UsageError("engine.context_overflow", tokens=t("engine.more_than", count=limit), limit=limit)
        length *= 2
    return _ids(tokenizer, text, special)


def _ids(tokenizer: Any, text: str, special: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise UsageError("engine.not_text", reason=e) from None
    ids: list[int]
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        # A batch of one, because this call lets other threads run meanwhile and the one for a text does not.
        ids = backend.encode_batch_fast([text], add_special_tokens=special)[0].ids
    else:
        ids = tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
    return ids

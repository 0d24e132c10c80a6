"""The grammar of an answer: reasoning first, then what the request asks for, in the model's own markup."""

from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from kt_core.errors import UsageError
from kt_core.server.parsers import Style, harmony
from kt_core.server.parsers.base import Broken, Calls, Thinking
from kt_core.server.parsers.grammar import Grammar, either, quoted
from kt_core.server.parsers.values import name_of
from kt_core.types import Format, Request


def wanted(request: Request) -> bool:
    """Whether anything has to be as a grammar says."""
    return request.format is not None or bool(request.must_call)


def grammar_of(request: Request, style: Style, special: Mapping[str, int], prompt_end: str, parallel: bool) -> str:
    """The grammar of a request's answers. `prompt_end` is the text that the prompt ends with.

    A call that has to be made is one of the tools named; where a text has to have a form, calls may be made instead of it.
    Raises UsageError where the model has no markup for calls, and for what no grammar can say.
    """
    grammar = Grammar(special)
    thinking, continued = style.thinking, request.continued
    if style.calls is harmony.STYLE:  # its marks stand around texts too, whoever splits them
        thinking = thinking or harmony.THINKING
    inside = bool(continued) and not (thinking and thinking.opened(prompt_end, continued))  # of a text
    ways = []
    if request.format is not None and not request.must_call:
        mark = grammar.mark(thinking.text) if thinking and not inside else ""
        ways.append(f"{mark} {content(grammar, request.format)}")
    if request.must_call and (style.calls is None or inside):
        raise UsageError("server.no_calls", field="tool_choice")
    if style.calls and request.tools and not inside:
        names = request.must_call or tuple(tool["function"]["name"] for tool in request.tools)
        ways.append(
            _calls(grammar, style.calls, [t for t in request.tools if t["function"]["name"] in names], parallel)
        )
    answer = either(ways)
    return grammar.text(f"{'' if inside else _reasoning(grammar, thinking, prompt_end, continued)} {answer}")


def content(grammar: Grammar, form: Format) -> str:
    """The expression of a text of this form."""
    if form.kind == "json":
        return grammar.json(form.value, form.strict)
    if form.kind == "choice":
        return either(map(quoted, form.value))
    if form.kind == "regex":
        return grammar.rule(f"/{regex_to_lark(form.value, 'd')}/")
    try:
        lark = any_to_lark(form.value)
    except RecursionError:
        raise UsageError("engine.grammar", reason="nested too deep") from None
    except Exception as error:  # the converter's only class for most of what is wrong
        raise UsageError("engine.grammar", reason=" ".join(str(error).split())) from None
    return grammar.rule(f"%lark {{\n{lark}\n}}")


def _reasoning(grammar: Grammar, thinking: Thinking | None, prompt_end: str, continued: str) -> str:
    """What comes before the answer proper. A model may leave out reasoning that the prompt has not begun."""
    if thinking is None:
        return ""
    rest = grammar.mark(thinking.after) if thinking.after else r"/\s{0,4}/"
    thought = f"{grammar.until(thinking.close)} {rest}"
    if thinking.opened(prompt_end, continued):
        return thought
    if prompt_end.rstrip().endswith(thinking.close):
        return ""
    return f"({grammar.mark(thinking.open)} {thought})?"


def _calls(grammar: Grammar, calls: Calls, tools: list[dict[str, Any]], parallel: bool) -> str:
    functions = [tool["function"] for tool in tools]
    for function in functions:
        try:
            name_of(function["name"])
        except Broken:
            raise UsageError(
                "server.field", field="tools", reason=f"{function['name']!r} is no name of a tool"
            ) from None
    call = grammar.rule(
        either(calls.write(grammar, f["name"], f.get("parameters"), f.get("strict") is True) for f in functions)
    )
    before, behind = (grammar.mark(mark) for mark in calls.around)
    more = "" if calls.single or not parallel else f"({quoted(calls.between)} {call})*" if calls.between else f"{call}*"
    return f"{before} {call} {more} {behind}"

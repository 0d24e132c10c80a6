"""A tokenizer with marks as special tokens, and an answer with reasoning and calls, in the markup of Kimi K2."""

import copy
import json

import tinymodel
from tokenizers import AddedToken

TEMPLATE = """{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif -%}
{{ m.content }}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson -}}
<|tool_call_end|>{% endfor %}<|end|>{% endfor %}{% if tools %}{{ tools | tojson }}{% endif -%}
{% if add_generation_prompt %}<|assistant|>{% if thinking is defined and thinking %}<think>{% endif %}{% endif %}"""
MARKS = [f"<|tool_call_{part}|>" for part in ("begin", "argument_begin", "end")]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in "fg"
]


def call(name, arguments, index=0):
    return f"{MARKS[0]}functions.{name}:{index}{MARKS[1]}{json.dumps(arguments)}{MARKS[2]}"


ANSWER = f"<think>Hm. é</think>\n\nI look.<|hidden|> {call('f', {'city': 'Oslo'})}{call('g', {}, 1)}"


def tokenizer_of(marks=(*MARKS, "<|hidden|>")):
    tokenizer = copy.deepcopy(tinymodel.tokenizer())
    marks = [AddedToken(mark, special=True, normalized=False) for mark in marks]
    tokenizer.backend_tokenizer.add_special_tokens(marks)
    tokenizer.chat_template = TEMPLATE
    return tokenizer

"""Small chat templates with the markup of the families: style -> template.

They share the tools at the beginning, and an assistant's turn of reasoning, text and calls.
"""


def _template(call, think=("<think>", "</think>"), around=("", ""), prompt="", end="<|end|>"):
    opened, closed = think
    thought = (
        "{% if m.reasoning_content %}" + opened + "{{ m.reasoning_content }}" + closed + "{% endif %}" if opened else ""
    )
    return (
        "{{ tools | tojson }}{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>" + thought + "{{ m.content }}"
        "{% if m.tool_calls %}" + around[0] + "{% for tool in m.tool_calls %}{% set f = tool.function %}" + call + "{% endfor %}"
        + around[1] + "{% endif %}" + end + "{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>" + prompt + "{% endif %}"
    )  # fmt: skip


_TEXT = "{{ v if v is string else v | tojson }}"
_PAIRS = "{% for k, v in f.arguments.items() %}"
_SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
_DSML = "｜DSML｜"
_NS = "]<]minimax[>["
_XML = (
    "{% macro xml(v) %}{% if v is mapping %}{% for k, i in v.items() %}" + _NS + "<{{ k }}>{{ xml(i) }}" + _NS + "</{{ k }}>"
    "{% endfor %}{% elif v is iterable and v is not string %}{% for i in v %}" + _NS + "<item>{{ xml(i) }}" + _NS + "</item>"
    "{% endfor %}{% else %}" + _TEXT + "{% endif %}{% endmacro %}"
)  # fmt: skip

TEMPLATES = {
    "hermes": _template(
        '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>\n', prompt=_SWITCH
    ),
    "qwen3-coder": _template(
        "<tool_call>\n<function={{ f.name }}>\n"
        + _PAIRS
        + "<parameter={{ k }}>\n"
        + _TEXT
        + "\n</parameter>\n{% endfor %}</function>\n</tool_call>\n"
    ),
    "glm": _template(
        "<tool_call>{{ f.name }}\n"
        + _PAIRS
        + "<arg_key>{{ k }}</arg_key>\n<arg_value>"
        + _TEXT
        + "</arg_value>\n{% endfor %}</tool_call>"
    ),
    "deepseek-v3": _template(
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>",
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "deepseek-v3.2": _template(
        f'<{_DSML}invoke name="{{{{ f.name }}}}">\n'
        + _PAIRS
        + f"<{_DSML}parameter name=\"{{{{ k }}}}\" string=\"{{{{ 'true' if v is string else 'false' }}}}\">{_TEXT}</{_DSML}parameter>\n"
        + f"{{% endfor %}}</{_DSML}invoke>\n",
        around=(f"\n\n<{_DSML}tool_calls>\n", f"</{_DSML}tool_calls>"),
    ),
    "kimi-k2": _template(
        "<|tool_call_begin|>{{ tool.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>",
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "minimax-m2": _template(
        '<invoke name="{{ f.name }}">\n'
        + _PAIRS
        + '<parameter name="{{ k }}">'
        + _TEXT
        + "</parameter>\n{% endfor %}</invoke>\n",
        around=("\n<minimax:tool_call>\n", "</minimax:tool_call>"),
    ),
    "minimax-m3": _XML
    + _template(
        f'{_NS}<invoke name="{{{{ f.name }}}}">{{{{ xml(f.arguments) }}}}{_NS}</invoke>\n',
        ("<mm:think>", "</mm:think>"),
        (f"{_NS}<tool_call>\n", f"{_NS}</tool_call>"),
    ),
    "llama": _template('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}', ("", ""))
    + "{# <|start_header_id|> #}",
    "mistral": _template(
        "{% if tool.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
        "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
        ("[THINK]", "[/THINK]"),
        end="</s>",
    ),
    "harmony": (
        "{% if tools %}{{ tools | length }} tools{% endif %}"
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('content or thinking') }}{% endif %}"
        "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
        "{% for tool in m.tool_calls or [] %}<|start|>assistant to=functions.{{ tool.function.name }}<|channel|>commentary json"
        "<|message|>{{ tool.function.arguments | tojson }}<|call|>{% endfor %}"
        "{% if m.content %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
}
ENDS = ("<|end|>", "</s>", "<|call|>")

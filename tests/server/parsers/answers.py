"""The canned answers of every style: (style of calls, style of reasoning) -> cases."""

from canned import (
    NOW,
    NS,
    OSLO,
    THINK,
    Case,
    coder,
    deepseek_v3,
    deepseek_v31,
    dsml,
    general,
    glm,
    harmony,
    hermes,
    kimi,
    llama,
    m,
    minimax_m2,
    minimax_m3,
    mistral,
)

oslo = {
    write: write(*OSLO) for write in (hermes, coder, glm, deepseek_v31, dsml, kimi, minimax_m2, minimax_m3, mistral)
}
START, SAID = "<|start|>assistant", "<|channel|>final<|message|>"
THOUGHT = "<|channel|>analysis<|message|>"
QUOTED = f"{hermes(*OSLO)}</think>"

CASES = {
    ("hermes", "think"): [
        *general(hermes, THINK),
        Case("marks in a value", hermes("write", {"text": QUOTED}), m("", "", ("write", {"text": QUOTED}))),
        Case("one line", '<tool_call>{"arguments": {}, "name": "time-now"}</tool_call>', m("", "", NOW)),
        Case("no end", oslo[hermes].removesuffix("</tool_call>"), m("", "", OSLO)),
        Case("half an end", oslo[hermes].removesuffix("ll>"), m("", "", OSLO)),
        Case("cut off", '<tool_call>\n{"name": "get_weather", "argu', m('{"name": "get_weather", "argu')),
        Case("next without an end", f"<tool_call>{{}}\n{oslo[hermes]}", m("{}", "", OSLO)),
        Case("broken, then good", f"<tool_call>\n{{bad}}</tool_call>\n{oslo[hermes]}", m("{bad}", "", OSLO)),
        Case(
            "open string, then good",
            f'<tool_call>{{"name": "x</tool_call>\n{oslo[hermes]}',
            m('{"name": "x', "", OSLO),
        ),
        Case("a word about it", "Use <tool_call> for it. Bye", m("Use  for it. Bye")),
        Case("in thought, a word", "<think>Use <tool_call> now.</think>Bye", m("Bye", "Use  now.")),
        Case("brace too many", oslo[hermes].replace("}}", "}}}"), m("", "", OSLO)),
        Case("text in the marks", oslo[hermes].replace("}}", "}} ok"), m("ok", "", OSLO)),
        Case("arguments as text", hermes("get_weather", '"{\\"city\\": \\"Oslo\\"}"'), m("", "", OSLO)),
        Case(
            "line break in a value",
            hermes("get_weather", '{"city": "Os\nlo"}'),
            m("", "", ("get_weather", {"city": "Os\nlo"})),
        ),
        Case("no arguments at all", '<tool_call>{"name": "time-now"}</tool_call>', m("", "", NOW)),
        Case("a list", hermes("get_weather", "[1]"), m('{"name": "get_weather", "arguments": [1]}')),
        Case(
            "no number",
            hermes("get_weather", '{"days": NaN}'),
            m('{"name": "get_weather", "arguments": {"days": NaN}}'),
        ),
        Case(
            "too large",
            hermes("get_weather", '{"days": 1e999}'),
            m('{"name": "get_weather", "arguments": {"days": 1e999}}'),
        ),
        Case("nested", hermes("time-now", "[" * 5000), m('{"name": "time-now", "arguments": ' + "[" * 5000 + "}")),
    ],
    ("qwen3-coder", "think"): [
        *general(coder, THINK),
        Case("outer tag left out", oslo[coder].removeprefix("<tool_call>\n"), m("", "", OSLO)),
        Case("no line breaks", oslo[coder].replace("\n", ""), m("", "", OSLO)),
        Case("more line breaks", oslo[coder].replace(">\n<", ">\n\n\n<"), m("", "", OSLO)),
        Case(
            "end marks in a value",
            coder("write", {"text": "a</function></tool_call>b"}),
            m("", "", ("write", {"text": "a</function></tool_call>b"})),
        ),
        Case(
            "lines of a value", coder("write", {"text": "\n a\n\nb \n"}), m("", "", ("write", {"text": "\n a\n\nb \n"}))
        ),
        Case(
            "Python's words",
            coder("get_weather", {"metric": "True", "days": "None", "note": "null", "city": "5"}),
            m("", "", ("get_weather", {"metric": True, "days": "None", "note": None, "city": "5"})),
        ),
        Case(
            "other types than declared",
            coder("get_weather", {"days": "soon", "hours": "{", "place": "1"}),
            m("", "", ("get_weather", {"days": "soon", "hours": "{", "place": "1"})),
        ),
        Case("whole numbers", coder("get_weather", {"days": "3.0"}), m("", "", ("get_weather", {"days": 3}))),
        Case("undeclared", coder("other", {"a": "5", "b": "x"}), m("", "", ("other", {"a": 5, "b": "x"}))),
        Case(
            "cut off",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
            m("get_weather>\n<parameter=city>\nOs"),
        ),
        Case(
            "no end", oslo[coder].partition("</function>")[0], m("get_weather>\n<parameter=city>\nOslo\n</parameter>\n")
        ),
        Case(
            "open value, then good",
            f"<tool_call>\n<function=f>\n<parameter=a>\n1</function></tool_call>{oslo[coder]}",
            m("f>\n<parameter=a>\n1", "", OSLO),
        ),
        Case("a word about it", "like <function=my function> and so on", m("like my function> and so on")),
    ],
    ("glm", "think"): [
        *general(glm, THINK),
        Case("GLM-4.7", oslo[glm].replace("\n", ""), m("", "", OSLO)),
        Case("no arguments on a line", "<tool_call>time-now\n</tool_call>", m("", "", NOW)),
        Case(
            "end mark in a value",
            glm("write", {"text": "a</tool_call>b"}),
            m("", "", ("write", {"text": "a</tool_call>b"})),
        ),
        Case("no end", oslo[glm].removesuffix("</tool_call>"), m(oslo[glm][11:-12])),
        Case("no value", "<tool_call>f<arg_key>a</arg_key></tool_call>!", m("f<arg_key>a</arg_key>!")),
        Case("a word about it", "Use <tool_call> for it. Bye", m("Use  for it. Bye")),
        Case("open key, then good", f"<tool_call>f<arg_key>a{oslo[glm]}", m("f<arg_key>a", "", OSLO)),
    ],
    ("deepseek-v3", "think"): [
        *general(deepseek_v31, THINK),
        *general(deepseek_v3, THINK),
        Case(
            "two of one section",
            (oslo[deepseek_v31] * 2).replace("<｜tool▁calls▁end｜><｜tool▁calls▁begin｜>", ""),
            m("", "", OSLO, OSLO),
        ),
        Case("no section", oslo[deepseek_v31][20:-18], m("", "", OSLO)),
        Case("no separator", "<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>a", m("f{}a")),
        Case(
            "broken, then good",
            f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{{<｜tool▁call▁end｜>{oslo[deepseek_v31]}",
            m("f{", "", OSLO),
        ),
    ],
    ("deepseek-v3.2", "think"): [
        *general(dsml, THINK),
        *general(lambda name, arguments: dsml(name, arguments, "function_calls"), THINK),
        Case(
            "text by its own word",
            dsml("get_weather", {"days": "5"}),
            m("", "", ("get_weather", {"days": "5"})),
        ),
        Case("no word", oslo[dsml].replace(' string="true"', ""), m("", "", OSLO)),
        Case("no name", '<｜DSML｜invoke id="f"></｜DSML｜invoke>a', m(' id="f">a'.strip())),
        Case(
            "no end", oslo[dsml].partition("</｜DSML｜invoke>")[0], m(oslo[dsml].partition("</｜DSML｜invoke>")[0][33:])
        ),
    ],
    ("kimi-k2", "think"): [
        *general(kimi, THINK),
        Case(
            "line breaks in the id",
            oslo[kimi].replace("weather:0", "weather:0\n").replace("functions", "\nfunctions"),
            m("", "", OSLO),
        ),
        Case("no prefix", oslo[kimi].replace("functions.", "").replace(":0", ""), m("", "", OSLO)),
        Case("one section's other name", oslo[kimi].replace("calls_section", "call_section"), m("", "", OSLO)),
        Case("no section", oslo[kimi][28:-26], m("", "", OSLO)),
        Case("section in thought", "<think>a<|tool_calls_section_begin|>b</think>c", m("c", "ab")),
        Case("no arguments", "<|tool_call_begin|>functions.f:0<|tool_call_end|>a", m("functions.f:0a")),
    ],
    ("minimax-m2", "think"): [
        *general(minimax_m2, THINK),
        Case(
            "two of one section",
            oslo[minimax_m2].replace("</invoke>", f"</invoke>\n{minimax_m2(*OSLO)[20:-20]}"),
            m("", "", OSLO, OSLO),
        ),
        Case("other quotes", oslo[minimax_m2].replace('"', "'"), m("", "", OSLO)),
        Case("no quotes", oslo[minimax_m2].replace('"', ""), m("", "", OSLO)),
        Case(
            "end in a value",
            minimax_m2("write", {"text": "a</invoke>b"}),
            m("", "", ("write", {"text": "a</invoke>b"})),
        ),
        Case("no name", "<invoke name=><parameter></invoke>a", m("><parameter>a")),
    ],
    ("minimax-m3", "minimax-m3"): [
        *general(minimax_m3, ("<mm:think>", "</mm:think>")),
        Case("line breaks", oslo[minimax_m3].replace(f">{NS}", f">\n{NS}"), m("", "", OSLO)),
        Case("empty list", minimax_m3("get_weather", {"hours": ""}), m("", "", ("get_weather", {"hours": []}))),
        Case(
            "undeclared",
            minimax_m3("f", {"a": {"b": [{"c": "x"}, {"c": "5"}]}}),
            m("", "", ("f", {"a": {"b": [{"c": "x"}, {"c": 5}]}})),
        ),
        Case("not closed", f'{NS}<invoke name="f">{NS}<a>1{NS}</invoke>!', m(f'"f">{NS}<a>1!')),
    ],
    ("llama", "none"): [
        *general(llama, ("", ""), single=True)[:2],
        Case("bare", llama(*OSLO)[14:], m("", "", OSLO)),
        Case("bare with space", "\n\n" + llama(*OSLO)[14:] + "\n", m("", "", OSLO)),
        Case("of several the first", f"{llama(*OSLO)[14:]}; {llama(*NOW)[14:]}", m("", "", OSLO)),
        Case("JSON that is no call", '{"name": "Bob", "age": 5}', m('{"name": "Bob", "age": 5}')),
        Case("JSON and text", '{"a": 1} is it', m('{"a": 1} is it')),
        Case("JSON later", f"See: {llama(*OSLO)[14:]}", m(f"See: {llama(*OSLO)[14:]}")),
        Case("cut off", llama(*OSLO)[14:-3], m(llama(*OSLO)[14:-3])),
        Case("code", "<|python_tag|>print(1)", m("print(1)")),
    ],
    ("mistral", "mistral"): [
        *[case for case in general(mistral, ("[THINK]", "[/THINK]")) if case.name != "text behind"],
        Case(
            "list",
            '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "time-now", "arguments": {}}]',
            m("", "", OSLO, NOW),
        ),
        Case("ids", "[TOOL_CALLS]time-now[CALL_ID]abcdefghi[ARGS]{}", m("", "", NOW)),
        Case("text behind", f"a{oslo[mistral]} b", m("a b", "", OSLO)),
        Case("cut off", oslo[mistral][:-3], m('get_weather{"city": "Osl')),
        Case("broken, then good", f"[TOOL_CALLS]f[ARGS]{{]{oslo[mistral]}", m("f{]", "", OSLO)),
        Case("empty list", "[TOOL_CALLS][]", m("[]")),
    ],
    ("harmony", "harmony"): [
        *[
            Case(case.name, f"{START.join([SAID + 'a <|end|>', harmony(*OSLO)])}", m("a", "", OSLO))
            if case.name == "text before"
            else case
            for case in general(harmony, ("", ""), single=True)
            if case.name != "text behind"
        ],
        Case("said", f"{SAID}yes\n", m("yes\n")),
        Case("thought and said", f"{THOUGHT}hm<|end|>{START}{SAID}yes<|return|>", m("yes", "hm")),
        Case("thought and called", f"{THOUGHT}hm<|end|>{START}{harmony(*OSLO)}", m("", "hm", OSLO)),
        Case(
            "recipient first",
            f'{THOUGHT}hm<|end|>{START} to=functions.get_weather<|channel|>commentary json<|message|>{{"city": "Oslo"}}',
            m("", "hm", OSLO),
        ),
        Case("preamble", f"<|channel|>commentary<|message|>Wait.<|end|>{START}{harmony(*OSLO)}", m("Wait.", "", OSLO)),
        Case("two thoughts", f"{THOUGHT}a<|end|>{START}{THOUGHT}b<|end|>{START}{SAID}c", m("c", "a\nb")),
        Case("no arguments", "<|channel|>commentary to=functions.time-now<|message|>", m("", "", NOW)),
        Case("broken", f"{harmony('f', '{bad')}{START}{SAID}x", m("{bad\nx")),
        Case("no end", f"{THOUGHT}a{SAID}b", m("b", "a")),
        Case("long without a header", "word " * 100, m("word " * 100)),
        Case("all of the header", f"{START}{SAID}x", m("x")),
        Case("of several the first", f"{harmony(*OSLO)}{START}{harmony(*NOW)}", m("", "", OSLO)),
        Case("continued", f"{SAID}x", m("x"), "<|end|><|start|>assistant"),
        Case("channel in the prompt", "hm<|end|>", m("", "hm"), "<|start|>assistant<|channel|>analysis<|message|>"),
    ],
}

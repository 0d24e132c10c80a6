"""Messages of judging models."""

MESSAGES: dict[str, tuple[str, str]] = {
    "quality.no_json": ("It is not JSON from character {column} on", "自第 {column} 个字符起不是 JSON"),
    "quality.no_object": (
        "It is not an object with question, choices and answer",
        "它不是含 question、choices 与 answer 的对象",
    ),
    "quality.no_question": ("question is missing, or not a text", "缺少 question，或其不是文本"),
    "quality.no_choices": (
        "choices is missing, or not a list of at least {least}",
        "缺少 choices，或其不是至少含 {least} 项的列表",
    ),
    "quality.odd_choice": (
        "One of the choices is neither a text nor a number, or empty",
        "choices 中有一项既非文本也非数字，或为空",
    ),
    "quality.no_characters": (
        "It has half of a character, a lone surrogate",
        "其中含有半个字符，即单独的代理项",
    ),
    "quality.not_finite": (
        "{name} gives numbers that are not finite.\nNothing can be judged of it: its weights or their conversion are damaged.\n"
        "Make it again, or download it again.",
        "{name} 给出的数值不是有限值。\n无法对其评判：其权重或转换已损坏。\n请重新转换或重新下载。",
    ),
    "quality.same_choices": ("Two of the choices are the same", "choices 中有两项相同"),
    "quality.no_answer": (
        "answer is missing; it is a number from 0 to {last}, a letter from A to {letter}, or the choice itself",
        "缺少 answer；应为 0 至 {last} 的整数、A 至 {letter} 的字母，或选项本身",
    ),
    "quality.odd_answer": (
        "answer is none of the choices; it is a number from 0 to {last}, a letter from A to {letter}, or the choice itself",
        "answer 不在选项之中；应为 0 至 {last} 的整数、A 至 {letter} 的字母，或选项本身",
    ),
    "quality.question": (
        "Line {line} of {path} is not a question.\n{reason}.\n"
        'It looks like: {{"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1}}',
        "{path} 第 {line} 行不是选择题。\n{reason}。\n"
        '格式如：{{"question": "2 + 2 =", "choices": ["3", "4"], "answer": 1}}',
    ),
    "quality.short": (
        "The text {path} is too short.\nIt has {tokens} tokens; one window is {window}.\nChoose a longer text or a smaller --window.",
        "文本 {path} 太短。\n仅有 {tokens} 个 token；一个窗口为 {window}。\n请选择更长的文本或减小 --window。",
    ),
    "quality.other_tokens": (
        "The models cannot be compared.\nThey read {path} as different tokens.\nCompare precisions of one model.",
        "无法比较这些模型。\n它们对 {path} 的分词结果不同。\n请比较同一模型的不同精度。",
    ),
    "quality.broken_package": (
        "Judging cannot start: a package is missing or broken.\n{reason}\nNext: kt doctor",
        "无法开始评估：某个软件包缺失或损坏。\n{reason}\n下一步：kt doctor",
    ),
    "quality.failed": ("Judging failed.\n{reason}\nThe log says more.", "评估失败。\n{reason}\n详见日志。"),
}

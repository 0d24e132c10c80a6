"""Messages of `kt chat`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "chat.help": (
        "Talk to a running server\n"
        "On a terminal, answers appear as formatted markdown and Ctrl-C stops only the answer. "
        "With standard input from a pipe, all of it is one question and the answer is plain text.",
        "与运行中的服务器对话\n"
        "在终端上，回答以排版后的 Markdown 显示，Ctrl-C 只停止当前回答。"
        "若标准输入来自管道，则全部内容作为一个问题，回答为纯文本。",
    ),
    "chat.examples": (
        "kt chat\nkt chat --url http://192.168.1.5:30000\nkt chat < question.txt > answer.md",
        "kt chat\nkt chat --url http://192.168.1.5:30000\nkt chat < question.txt > answer.md",
    ),
    "chat.url": (
        "Address of the server; default: the newest one that runs here",
        "服务器的地址；默认为本机最近启动的服务器",
    ),
    "chat.model": (
        "Name of the model; default: the server's first",
        "模型名称；默认为服务器的第一个模型",
    ),
    "chat.system": ("System prompt; default: the setting chat.system", "系统提示词；默认取设置 chat.system"),
    "chat.temperature": (
        "Sampling temperature from 0 (always the likeliest token) to 2; default: the setting chat.temperature (0.7)",
        "采样温度，0（总是选概率最高的 token）到 2；默认取设置 chat.temperature（0.7）",
    ),
    "chat.max_tokens": (
        "Longest answer in tokens; default: up to the context",
        "单次回答的最大 token 数；默认直到上下文用完",
    ),
    "chat.raw": ("Show answers as plain text", "以纯文本显示回答"),
    "chat.welcome": (
        "{model} at {url}. /help lists the commands, Ctrl-D leaves.",
        "{model}（{url}）。/help 列出命令，Ctrl-D 退出。",
    ),
    "chat.no_server": (
        "No server is running.\nkt chat talks to one that kt run has started.\nkt run {model}",
        "没有运行中的服务器。\nkt chat 与 kt run 启动的服务器对话。\nkt run {model}",
    ),
    "chat.no_such_server": (
        "No server is running {model}.\nRunning: {running}\nkt run {model}",
        "没有运行 {model} 的服务器。\n正在运行：{running}\nkt run {model}",
    ),
    "chat.no_model": (
        "The server at {url} has no model {model}.\nIt has: {offered}\nLeave --model out to talk to its first one.",
        "服务器 {url} 没有模型 {model}。\n它有：{offered}\n省略 --model 即与它的第一个模型对话。",
    ),
    "chat.too_long": (
        "Shorten the question, or forget the conversation so far with /clear.",
        "请缩短问题，或用 /clear 清除之前的对话。",
    ),
    "chat.too_long_once": (
        "Shorten the question, or start the server anew with a larger --context.",
        "请缩短问题，或以更大的 --context 重新启动服务器。",
    ),
    "chat.again": ("Press Ctrl-C again to leave, or Ctrl-D.", "再按一次 Ctrl-C 或按 Ctrl-D 退出。"),
    "chat.stopped": ("Stopped.", "已停止。"),
    "chat.cleared": ("The conversation starts anew.", "对话已重新开始。"),
    "chat.system_set": ("The system prompt is set.", "系统提示词已设置。"),
    "chat.system_none": ("There is no system prompt.", "没有系统提示词。"),
    "chat.nothing_to_retry": ("There is no question to ask again.", "没有可以重问的问题。"),
    "chat.save_where": ("Name a file: /save chat.json", "请指定文件：/save chat.json"),
    "chat.save_exists": ("{file} exists already; name another file.", "{file} 已存在，请换一个文件名。"),
    "chat.save_failed": (
        "{file} cannot be written.\n{reason}\nName another file: /save FILE",
        "无法写入 {file}。\n{reason}\n请换一个文件：/save 文件",
    ),
    "chat.saved": ("Saved in {file}", "已保存到 {file}"),
    "chat.unknown": ("There is no command {name}; /help lists them.", "没有命令 {name}；用 /help 查看。"),
    "chat.unknown_near": (
        "There is no command {name}; did you mean {near}?",
        "没有命令 {name}；您是否想输入 {near}？",
    ),
    "chat.help_help": ("Show this list", "显示此列表"),
    "chat.help_clear": ("Forget the conversation; the system prompt stays", "清除对话；保留系统提示词"),
    "chat.help_system": ("Show the system prompt, or set it: /system TEXT", "显示系统提示词，或设置：/system 文字"),
    "chat.help_retry": ("Answer the last question again", "重新回答上一个问题"),
    "chat.help_save": ("Write the conversation to a JSON file: /save FILE", "把对话写入 JSON 文件：/save 文件"),
    "chat.help_exit": ("Leave, as Ctrl-D does", "退出，与 Ctrl-D 相同"),
    "chat.help_quotes": ("Begins and ends a question of several lines", "多行问题的开始与结束"),
    "chat.help_interrupt": ("Stops the answer; twice at an empty prompt leaves", "停止回答；在空提示符下按两次则退出"),
}

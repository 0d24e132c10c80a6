"""Messages of `kt chat`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "chat.help": (
        "Talk to a running server\n"
        "On a terminal, answers appear as formatted markdown and Ctrl-C stops only the answer; /help lists what else there is. "
        "With --prompt, --file or a pipe on standard input there is one question, and the answer is plain text in a pipe.",
        "与运行中的服务器对话\n"
        "在终端上，回答以排版后的 Markdown 显示，Ctrl-C 只停止当前回答；/help 列出其他功能。"
        "使用 --prompt、--file 或从管道读取标准输入时只有一个问题，输出到管道时回答为纯文本。",
    ),
    "chat.examples": (
        "kt chat\nkt chat -c\nkt chat --url http://192.168.1.5:30000\n"
        'kt chat -p "What does this do?" -f main.py\nkt chat < question.txt > answer.md',
        "kt chat\nkt chat -c\nkt chat --url http://192.168.1.5:30000\n"
        'kt chat -p "这段代码做什么？" -f main.py\nkt chat < question.txt > answer.md',
    ),
    "chat.prompt": (
        "Answer this text once and exit; - reads it from stdin",
        "回答这段文字一次后退出；- 表示从标准输入读取",
    ),
    "chat.file": (
        "A text file that goes along with the question, or is the question without --prompt; - is stdin; may be given "
        "several times; default: none",
        "随问题附带的文本文件；没有 --prompt 时即为问题；- 表示标准输入；可多次使用；默认无",
    ),
    "chat.image": (
        "An image that goes along with the question: a path, or an http(s) address that is fetched here; may be given several "
        "times; default: none",
        "随问题附带的图像：路径，或由本机获取的 http(s) 地址；可多次使用；默认无",
    ),
    "chat.continue": ("Go on with the newest kept conversation", "继续最近保存的对话"),
    "chat.no_save": (
        "Do not keep this conversation; default: the setting chat.save (kept)",
        "不保存此次对话；默认取设置 chat.save（保存）",
    ),
    "chat.start_one": ("No server is running. Start one?", "没有运行中的服务器。是否启动？"),
    "chat.url": (
        "Address of the server; default: the one that runs here; of several it is asked which, or the newest is taken",
        "服务器的地址；默认为本机运行的服务器；有多个时会询问，无法询问时取最近启动的",
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
    "chat.still_loading": (
        "The server of {model} at {url} is still loading.\n\nkt ps shows how far it is; try again then.",
        "{model} 的服务器（{url}）仍在加载。\n\n用 kt ps 查看进度，稍后再试。",
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
    "chat.saved": ("Saved in {file}", "已保存到 {file}"),
    "chat.unknown": ("There is no command {name}; /help lists them.", "没有命令 {name}；用 /help 查看。"),
    "chat.unknown_near": (
        "There is no command {name}; did you mean {near}?",
        "没有命令 {name}；您是否想输入 {near}？",
    ),
    "chat.thinks": ("Thinking ...", "思考中……"),
    "chat.thinking_shown": ("Reasoning is shown.", "将显示思考过程。"),
    "chat.thinking_hidden": ("Reasoning is hidden.", "将隐藏思考过程。"),
    "chat.thinking_on": ("The model is told to reason first.", "将要求模型先思考。"),
    "chat.thinking_off": ("The model is told not to reason.", "将要求模型不思考。"),
    "chat.no_thinking": (
        "/think does not know {word}.\nIt knows: {known}\nWithout a word it shows or hides reasoning.",
        "/think 不认识 {word}。\n可用：{known}\n不带参数时切换思考过程的显示。",
    ),
    "chat.no_parameter": (
        "There is no parameter {name}.\nThere are: {known}\n/set without a name shows them.",
        "没有参数 {name}。\n可用：{known}\n不带名称的 /set 会列出它们。",
    ),
    "chat.bad_parameter": (
        "{name} cannot be {value!r}.\nIt is a number from {low} to {high}, or none, which leaves it to the server.\n"
        "Type for example /set {name} {high}.",
        "{name} 不能是“{value}”。\n应为 {low} 到 {high} 的数，或 none（由服务器决定）。\n例如输入 /set {name} {high}。",
    ),
    "chat.parameter_set": ("{name} is now {value}.", "{name} 现为 {value}。"),
    "chat.left_to_server": ("the server's", "由服务器决定"),
    "chat.undone": ("The last question is taken back; {count} are left.", "已撤回上一个问题，剩余 {count} 个。"),
    "chat.edit_empty": ("Nothing was written, so nothing is asked.", "没有内容，未提问。"),
    "chat.file_which": ("Name a text file: /file notes.md", "请指定文本文件：/file notes.md"),
    "chat.attached": ("{file} goes along with the next question.", "{file} 将随下一个问题发送。"),
    "chat.image_which": (
        "Name an image: /image photo.png, or an http(s) address",
        "请指定图像：/image photo.png，或 http(s) 地址",
    ),
    "chat.goes_along": ("{file} goes along.", "已附带 {file}。"),
    "chat.none_kept": ("No conversation is kept yet.", "还没有保存的对话。"),
    "chat.taken_up": ("Going on with: {title} ({count} questions)", "继续对话：{title}（{count} 个问题）"),
    "chat.stats_answers": ("answers", "回答数"),
    "chat.stats_in": ("tokens in", "输入 token"),
    "chat.stats_cached": ("of these cached", "其中来自缓存"),
    "chat.stats_out": ("tokens out", "输出 token"),
    "chat.stats_context": ("context used", "已用上下文"),
    "chat.stats_of": ("{used} of {context}", "{used} / {context}"),
    "chat.no_model_here": (
        "No server here has a model {model}.\nThere are: {offered}\n/model without a name lists them.",
        "没有服务器提供模型 {model}。\n可用：{offered}\n不带名称的 /model 会列出它们。",
    ),
    "chat.now_with": (
        "Now with {model} at {url}; the conversation goes along.",
        "已切换到 {model}（{url}），对话继续。",
    ),
    "chat.help_help": ("Show this list", "显示此列表"),
    "chat.help_clear": ("Begin a new conversation; the system prompt stays", "开始新对话；保留系统提示词"),
    "chat.help_retry": ("Answer the last question again", "重新回答上一个问题"),
    "chat.help_undo": ("Take the last question and its answer back", "撤回上一个问题及其回答"),
    "chat.help_edit": (
        "Write the question in your editor (or press Ctrl-X Ctrl-E)",
        "在编辑器中书写问题（或按 Ctrl-X Ctrl-E）",
    ),
    "chat.help_file": (
        "Send a text file along with the next question: /file PATH",
        "随下一个问题发送文本文件：/file 路径",
    ),
    "chat.help_image": (
        "Send an image along: /image PATH or URL; the path of an image in a question does the same",
        "附带图像：/image 路径或网址；问题中写出图像路径亦可",
    ),
    "chat.help_system": ("Show the system prompt, or set it: /system TEXT", "显示系统提示词，或设置：/system 文字"),
    "chat.help_set": (
        "Show or set how answers are chosen: /set temperature 0.5",
        "显示或设置采样参数：/set temperature 0.5",
    ),
    "chat.help_think": (
        "Show or hide reasoning: /think show, hide; have it or not: on, off",
        "显示或隐藏思考过程：/think show、hide；要求思考与否：on、off",
    ),
    "chat.help_model": (
        "List the models that run, or change to one: /model NAME",
        "列出运行中的模型，或切换：/model 名称",
    ),
    "chat.help_copy": ("Put the last answer on the clipboard", "把上一个回答复制到剪贴板"),
    "chat.copied": (
        "Handed to the terminal for the clipboard: {count} characters",
        "已交给终端放入剪贴板：{count} 个字符",
    ),
    "chat.nothing_to_copy": ("There is no answer yet.", "还没有回答。"),
    "chat.copy_no_terminal": ("There is no terminal whose clipboard could take it.", "没有可以接收剪贴板内容的终端。"),
    "chat.help_stats": ("Figures of the conversation", "对话的统计数据"),
    "chat.help_save": ("Write the conversation to a JSON file: /save FILE", "把对话写入 JSON 文件：/save 文件"),
    "chat.help_load": (
        "List kept conversations, or go on with one: /load NUMBER or FILE",
        "列出保存的对话，或继续其中之一：/load 序号或文件",
    ),
    "chat.help_exit": ("Leave, as Ctrl-D does", "退出，与 Ctrl-D 相同"),
    "chat.help_quotes": ("Begins and ends a question of several lines", "多行问题的开始与结束"),
    "chat.help_newline": (
        "A new line, as Ctrl-J; pasted lines stay together",
        "换行，与 Ctrl-J 相同；粘贴的多行作为整体",
    ),
    "chat.help_interrupt": ("Stops the answer; twice at an empty prompt leaves", "停止回答；在空提示符下按两次则退出"),
}

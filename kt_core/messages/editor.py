"""Messages about the user's editor."""

MESSAGES: dict[str, tuple[str, str]] = {
    "editor.absent": (
        "There is no editor {name}.\nVISUAL and EDITOR name the one to use.\nName one that is installed, as in export EDITOR=nano.",
        "没有编辑器 {name}。\n环境变量 VISUAL 与 EDITOR 指定要使用的编辑器。\n请指定已安装的编辑器，例如 export EDITOR=nano。",
    ),
    "editor.no_terminal": (
        "There is no terminal for an editor.\nNeither VISUAL nor EDITOR names one that needs none.\n"
        "Run it on a terminal; kt config set NAME VALUE needs no editor.",
        "没有可供编辑器使用的终端。\nVISUAL 与 EDITOR 都未指定无需终端的编辑器。\n请在终端中运行；kt config set 名称 值 不需要编辑器。",
    ),
    "editor.failed": (
        "The editor {name} ended with code {code}.\nWhat it wrote is not used.\nTry again, or name another one in EDITOR.",
        "编辑器 {name} 以退出码 {code} 结束。\n未使用其内容。\n请重试，或在 EDITOR 中指定其他编辑器。",
    ),
}

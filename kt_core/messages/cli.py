"""Messages of the command line's frame: help pages, usage errors, small commands."""

MESSAGES: dict[str, tuple[str, str]] = {
    # help pages
    "cli.help": (
        "Run mixture-of-experts language models that are too big for a GPU",
        "运行 GPU 放不下的混合专家（MoE）大语言模型",
    ),
    "cli.help_examples": (
        'kt run demo -p "What is photosynthesis?"\nkt run demo\nkt chat\nkt doctor',
        'kt run demo -p "What is photosynthesis?"\nkt run demo\nkt chat\nkt doctor',
    ),
    "cli.usage": ("Usage: ", "用法："),
    "cli.examples": ("Examples:", "示例："),
    "cli.arguments": ("Arguments:", "参数："),
    "cli.commands": ("Commands:", "命令："),
    "cli.options": ("Options:", "选项："),
    "cli.global_options": ("Options of every command:", "所有命令通用的选项："),
    "cli.command_word": ("COMMAND", "命令"),
    "cli.options_word": ("[OPTIONS]", "[选项]"),
    "cli.help_option": ("Show this help and exit", "显示此帮助并退出"),
    "cli.version_option": ("Show the versions and exit", "显示版本并退出"),
    "cli.json": (
        "Write results and errors to stdout as JSON, one document a line",
        "以 JSON 形式把结果与错误写到标准输出，每行一个文档",
    ),
    "cli.quiet": ("Only results, and of lists only the names", "只输出结果；列表只输出名称"),
    "cli.color": (
        "When to use colour; the setting general.color, NO_COLOR and FORCE_COLOR count too",
        "何时使用颜色；设置 general.color、NO_COLOR 与 FORCE_COLOR 同样有效",
    ),
    "cli.unusable": (
        "{file} cannot be used.\n{reason}\nName another file or folder, or make this one usable.",
        "无法使用 {file}。\n{reason}\n请换用其他文件或文件夹，或使其可用。",
    ),
    # usage errors: one line each
    "cli.unknown_command": (
        "{group} has no command {name!r}; it has: {options}\n\nSee: {group} --help",
        "{group} 没有命令“{name}”；可用的有：{options}\n\n参见：{group} --help",
    ),
    "cli.unknown_command_near": (
        "{group} has no command {name!r}; did you mean {options}?\n\nSee: {group} --help",
        "{group} 没有命令“{name}”；您是否想输入 {options}？\n\n参见：{group} --help",
    ),
    "cli.called_here": (
        "{group} has no command {name!r}; what does that here: {options}\n\nSee: {group} --help",
        "{group} 没有命令“{name}”；对应的用法是：{options}\n\n参见：{group} --help",
    ),
    "cli.option_here": (
        "{command} has no option {name}; what does that here: {here}\n\nSee: {command} --help",
        "{command} 没有选项 {name}；对应的用法是：{here}\n\n参见：{command} --help",
    ),
    "cli.unknown_option": (
        "{command} has no option {name}.\n\nSee: {command} --help",
        "{command} 没有选项 {name}。\n\n参见：{command} --help",
    ),
    "cli.unknown_option_near": (
        "{command} has no option {name}; did you mean {options}?\n\nSee: {command} --help",
        "{command} 没有选项 {name}；您是否想输入 {options}？\n\n参见：{command} --help",
    ),
    "cli.missing": (
        "{command} needs {name}: {about}.\n\nSee: {command} --help",
        "{command} 缺少 {name}：{about}。\n\n参见：{command} --help",
    ),
    "cli.missing_command": (
        "{command} needs a command: {options}.\n\nSee: {command} --help",
        "{command} 缺少命令：{options}。\n\n参见：{command} --help",
    ),
    "cli.bad_value": (
        "{name} takes {expected}.\n\nSee: {command} --help",
        "{name} 的值应为：{expected}。\n\n参见：{command} --help",
    ),
    "cli.one_of": ("one of: {choices}", "以下之一：{choices}"),
    "cli.whole_number": ("a whole number", "整数"),
    "cli.number": ("a number", "数字"),
    "cli.between": ("{kind} from {low} to {high}", "{low} 到 {high} 之间的{kind}"),
    "cli.at_most": ("a whole number of at most {digits} digits", "不超过 {digits} 位的整数"),
    "cli.at_least": ("{kind}, {low} or more", "不小于 {low} 的{kind}"),
    "cli.needs_value": (
        "{name} needs a value.\n\nSee: {command} --help",
        "{name} 需要一个值。\n\n参见：{command} --help",
    ),
    "cli.takes_no_value": (
        "{name} takes no value.\n\nSee: {command} --help",
        "{name} 不接受值。\n\n参见：{command} --help",
    ),
    "cli.extra_argument": (
        "{command} does not know what to do with: {words}\n\nSee: {command} --help",
        "{command} 不认识多余的参数：{words}\n\n参见：{command} --help",
    ),
    "cli.other_usage": ("{message}\n\nSee: {command} --help", "{message}\n\n参见：{command} --help"),
    "cli.not_text": (
        "{word!r} on the command line is not valid UTF-8 text.\nIt has bytes that stand for no character.\n"
        "Type it again, or convert it first, for example with iconv.",
        "命令行中的“{word}”不是有效的 UTF-8 文本。\n其中有些字节不代表任何字符。\n请重新输入，或先转换编码，例如使用 iconv。",
    ),
    "cli.scarce": (
        "The system gives kt no more files, processes or memory.\n{reason}\nEnd other programs, or raise the limit: ulimit -a shows all of them.",
        "系统不再为 kt 提供文件、进程或内存。\n{reason}\n请结束其他程序，或提高限制：ulimit -a 显示全部限制。",
    ),
    "cli.unexpected": (
        "kt failed in a way that it should not.\n{reason}\nThe trace is in {log}, and KT_DEBUG=1 shows it here.",
        "kt 发生了不应出现的故障。\n{reason}\n调用栈在 {log} 中；设置 KT_DEBUG=1 可直接显示。",
    ),
    "cli.confirm_needs_yes": (
        "This needs a yes, and there is no terminal to ask on.\nNothing was changed.\nTo say yes beforehand: --yes",
        "此操作需要确认，但没有可供询问的终端。\n没有做任何改动。\n事先确认：--yes",
    ),
    # kt version
    "cli.version_help": (
        "Show the versions of kt and of what it runs on",
        "显示 kt 及其依赖的版本",
    ),
    "cli.not_installed": ("not installed", "未安装"),
    # kt config
    "cli.config_help": ("Read and change the settings", "查看和修改设置"),
    "cli.config_get_help": ("Show the value of one setting", "显示一个设置的值"),
    "cli.config_set_help": ("Change one setting in the file", "在文件中修改一个设置"),
    "cli.config_unset_help": (
        "Take one setting out of the file, so that its default counts again",
        "从文件中删除一个设置，恢复默认值",
    ),
    "cli.config_show_help": ("Show the settings that are in force", "显示生效的设置"),
    "cli.config_origin": (
        "Say where each value comes from: default, file or environment",
        "同时显示每个值的来源：默认、文件或环境变量",
    ),
    "cli.config_list_help": (
        "Show every setting, its value and where the value comes from",
        "显示所有设置、当前的值及其来源",
    ),
    "cli.config_path_help": ("Show where the file with the settings is", "显示设置文件的位置"),
    "cli.config_key": ("Name of the setting, such as server.port", "设置的名称，例如 server.port"),
    "cli.config_value": ("The new value", "新的值"),
    "cli.config_examples": (
        "kt config list\nkt config set server.port 8080\nkt config get server.port\nkt config unset server.port\nkt config edit",
        "kt config list\nkt config set server.port 8080\nkt config get server.port\nkt config unset server.port\nkt config edit",
    ),
    "cli.config_stored": ("{name} is now {value}, in {file}", "{name} 已设为 {value}，保存在 {file}"),
    "cli.config_unset": (
        "{name} is no longer set in {file}; it is now {value} ({origin})",
        "{file} 中不再设置 {name}；其值现为 {value}（{origin}）",
    ),
    "cli.config_not_set": (
        "{name} was not set in {file}; it stays {value} ({origin})",
        "{file} 中没有设置 {name}；其值仍为 {value}（{origin}）",
    ),
    "cli.config_edit_help": (
        "Edit the settings in your editor; a file that is not right is not taken over",
        "在编辑器中编辑设置；有误的内容不会生效",
    ),
    "cli.config_profiles_help": (
        "List the profiles of kt run, and the command that each stands for",
        "列出 kt run 的方案及其对应的命令",
    ),
    "cli.no_profiles": (
        "No profile is saved yet; kt run without arguments makes one.",
        "尚未保存任何方案；运行不带参数的 kt run 可创建方案。",
    ),
    "cli.config_unchanged": ("Nothing was changed in {file}", "{file} 没有改动"),
    "cli.config_edited": ("The settings in {file} are in force", "{file} 中的设置已生效"),
    "cli.config_again": ("Edit it again?", "重新编辑？"),
    "cli.config_shadowed": (
        "{env} is set in the environment and wins over the file",
        "环境变量 {env} 已设置，优先于文件",
    ),
    "cli.column_setting": ("SETTING", "设置"),
    "cli.column_value": ("VALUE", "值"),
    "cli.column_origin": ("FROM", "来源"),
    "cli.column_meaning": ("MEANING", "含义"),
    "cli.origin_default": ("default", "默认"),
    "cli.origin_file": ("file", "文件"),
    "cli.origin_environment": ("environment", "环境变量"),
    "cli.hidden_value": ("(set)", "（已设置）"),
    "cli.completion_usage": (
        "Usage: python -m kt_cli.completion --write",
        "用法：python -m kt_cli.completion --write",
    ),
}

"""Messages of the settings."""

MESSAGES: dict[str, tuple[str, str]] = {
    "config.general_language": (
        "Language of messages and help; auto follows the system's locale",
        "消息与帮助的语言；auto 表示跟随系统区域设置",
    ),
    "config.general_color": (
        "Colour in the output; auto means on a terminal only",
        "输出颜色；auto 表示仅在终端上使用",
    ),
    "config.paths_searched": (
        "Other folders in which models are looked for, with commas between; kt model path add and remove change it",
        "另外查找模型的文件夹，以逗号分隔；可用 kt model path add 与 remove 更改",
    ),
    "config.paths_models": (
        "Folder that holds pulled models; empty means kt's data folder",
        "存放已下载模型的文件夹；留空表示使用 kt 的数据目录",
    ),
    "config.server_host": ("Address that the server listens on", "服务器监听的地址"),
    "config.server_port": ("Port that the server listens on", "服务器监听的端口"),
    "config.server_api_key": (
        "Key that clients must send as a bearer token; empty means none",
        "客户端须以 Bearer 方式发送的密钥；留空表示不需要",
    ),
    "config.server_api_key_file": (
        "File with keys that clients may send, one a line; empty means none",
        "存放客户端可用密钥的文件，每行一个；留空表示没有",
    ),
    "config.server_cors": (
        "Origins of web pages that may use the server, with commas between them; * means any, empty means none",
        "允许使用服务的网页来源，以逗号分隔；* 表示任意来源，留空表示不允许",
    ),
    "config.server_media_hosts": (
        "Hosts from which the server fetches images that requests name by URL, with commas between them; empty means none",
        "服务可从哪些主机获取请求以 URL 引用的图像，以逗号分隔；留空表示不获取",
    ),
    "config.server_log_prompts": (
        "Whether prompts go into the server's log",
        "是否将提示词写入服务日志",
    ),
    "config.server_tool_parser": (
        "How the model writes tool calls: a parser's name; auto sees it from the chat template, none leaves calls in the text",
        "模型书写工具调用的方式：解析器名称；auto 由对话模板判断，none 将调用留在文本中",
    ),
    "config.server_reasoning_parser": (
        "How the model marks its reasoning: a parser's name; auto sees it from the chat template, none leaves it in the text",
        "模型标记思考内容的方式：解析器名称；auto 由对话模板判断，none 将其留在文本中",
    ),
    "config.inference_threads": (
        "CPU threads that compute; 0 lets the plan decide",
        "参与计算的 CPU 线程数；0 表示由计划决定",
    ),
    "config.inference_context": (
        "Longest conversation in tokens; 0 lets the plan decide",
        "对话的最大长度（token 数）；0 表示由计划决定",
    ),
    "config.inference_max_running": (
        "Requests computed at the same time; 0 lets the plan decide",
        "同时计算的请求数；0 表示由计划决定",
    ),
    "config.inference_kv_dtype": (
        "Type of cached keys and values; auto lets the plan decide",
        "缓存的键和值的类型；auto 表示由计划决定",
    ),
    "config.inference_prefix_host": (
        "Size of the prefixes kept in memory where the cache is on a GPU, such as 8GiB, or off; auto lets the plan decide",
        "缓存在 GPU 上时，内存中保存的前缀大小，如 8GiB，或 off；auto 表示由计划决定",
    ),
    "config.inference_prefix_disk": (
        "Size of the prefixes kept on disk, such as 20GiB, or off; auto lets the plan decide",
        "保存在磁盘上的前缀大小，如 20GiB，或 off；auto 表示由计划决定",
    ),
    "config.chat_temperature": (
        "Sampling temperature of kt chat and kt run -p; 0 always takes the likeliest token",
        "kt chat 与 kt run -p 的采样温度；0 总是选择概率最高的 token",
    ),
    "config.chat_top_p": (
        "Probability that the tokens to draw from have together, the likeliest first; 1 draws from all of them",
        "采样所用 token 的累积概率，从概率最高的开始；1 表示从全部 token 中采样",
    ),
    "config.chat_max_tokens": (
        "Longest answer in tokens; 0 means up to the context",
        "单次回答的最大 token 数；0 表示直到上下文用完",
    ),
    "config.chat_system": ("System prompt of every new conversation", "每次新对话使用的系统提示词"),
    "config.chat_save": (
        "Whether kt chat keeps its conversations, for this user's eyes only",
        "kt chat 是否保存对话（仅当前用户可读）",
    ),
    "config.type_str": ("text", "文本"),
    "config.type_secret": ("text on one line, without control characters", "一行文本，不含控制字符"),
    "config.secret": ("(not shown)", "（不显示）"),
    "config.type_int": ("a whole number", "整数"),
    "config.type_float": ("a number", "数字"),
    "config.type_bool": ("true or false", "true 或 false"),
    "config.between": ("{kind} from {low} to {high}", "{low} 到 {high} 之间的{kind}"),
    "config.at_least": ("{kind}, {low} or more", "不小于 {low} 的{kind}"),
    "config.unknown_key": (
        "There is no setting called {name}.\n\nKnown settings: kt config list",
        "没有名为 {name} 的设置。\n\n查看全部设置：kt config list",
    ),
    "config.unknown_key_near": (
        "There is no setting called {name}.\nThe nearest: {near}\nKnown settings: kt config list",
        "没有名为 {name} 的设置。\n相近的名称：{near}\n查看全部设置：kt config list",
    ),
    "config.unknown_key_in_file": (
        "{file} has a setting that does not exist: {name}\nkt config list shows those that do.\n"
        "Rename or delete that line.",
        "{file} 中有一个不存在的设置：{name}\n可用的设置见 kt config list。\n请改名或删除这一行。",
    ),
    "config.unknown_key_in_file_near": (
        "{file} has a setting that does not exist: {name}\nThe nearest: {near}\nRename or delete that line.",
        "{file} 中有一个不存在的设置：{name}\n相近的名称：{near}\n请改名或删除这一行。",
    ),
    "config.bad_value": (
        "{name} cannot be {value!r}.\nIt takes: {takes}\nSee: kt config list",
        "{name} 不能是“{value}”。\n可用的值：{takes}\n参见：kt config list",
    ),
    "config.bad_file_value": (
        "{file} sets {name} to {value!r}.\nIt takes: {takes}\nCorrect that line in the file.",
        "{file} 把 {name} 设成了“{value}”。\n可用的值：{takes}\n请在文件中改正这一行。",
    ),
    "config.bad_environment": (
        "The environment variable {name} is {value!r}.\nIt takes: {takes}\nGive it such a value, or: unset {name}",
        "环境变量 {name} 的值是“{value}”。\n可用的值：{takes}\n请改为可用的值，或：unset {name}",
    ),
    "config.broken_file": (
        "{file} is not valid TOML.\n{reason}, at line {line}, column {column}: {text}\n"
        "Correct the file; it was left as it is.",
        "{file} 不是有效的 TOML。\n第 {line} 行第 {column} 列，{reason}：{text}\n请改正该文件；文件未被改动。",
    ),
    "config.not_text": (
        "{file} is not UTF-8 text.\nByte {position} cannot be decoded.\nCorrect the file; it was left as it is.",
        "{file} 不是 UTF-8 文本。\n第 {position} 字节无法解码。\n请改正该文件；文件未被改动。",
    ),
    "config.not_a_file": (
        "{file} is no settings file.\nIt is a folder, a device or a pipe.\nName a text file in KT_CONFIG_FILE.",
        "{file} 不是设置文件。\n它是文件夹、设备或管道。\n请在 KT_CONFIG_FILE 中指定一个文本文件。",
    ),
    "config.unreadable": (
        "{file} cannot be read.\n{reason}\nCorrect the file or its permissions.",
        "无法读取 {file}。\n{reason}\n请改正该文件或它的权限。",
    ),
    "config.cannot_write": (
        "{file} cannot be written.\n{reason}\nKT_CONFIG_FILE can name another file.",
        "无法写入 {file}。\n{reason}\n可用 KT_CONFIG_FILE 指定别的文件。",
    ),
}

"""Messages of `kt run`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "run.help": (
        "Run a model: serve it, or answer one question\n"
        "Plans for this machine, starts a server with an OpenAI-compatible API and stays in the foreground; "
        "Ctrl-C stops it. A model that kt knows and that is not on this disk is downloaded first.",
        "运行模型：启动服务，或回答一个问题\n"
        "根据本机情况制定计划，启动兼容 OpenAI API 的服务器并保持在前台；按 Ctrl-C 停止。"
        "若 kt 认识该模型但本地没有，会先下载。",
    ),
    "run.examples": (
        'kt run demo\nkt run demo -p "What is photosynthesis?"\n'
        "kt run ./model.gguf --port 8080 --threads 8\necho question | kt run demo -p -\nkt run demo --dry-run",
        'kt run demo\nkt run demo -p "What is photosynthesis?"\n'
        "kt run ./model.gguf --port 8080 --threads 8\necho 问题 | kt run demo -p -\nkt run demo --dry-run",
    ),
    "run.name": (
        "Name of a model (kt model list shows them), a GGUF file, or a model folder",
        "模型名称（用 kt model list 查看）、GGUF 文件或模型文件夹",
    ),
    "run.prompt": (
        "Answer this text once and exit; - reads it from stdin. A terminal gets formatted markdown, a pipe plain text",
        "回答这段文字一次后退出；- 表示从标准输入读取。终端上显示排版后的 Markdown，管道中为纯文本",
    ),
    "run.system": (
        "System prompt, with --prompt; default: the setting chat.system",
        "系统提示词，与 --prompt 一起使用；默认取设置 chat.system",
    ),
    "run.temperature": (
        "Sampling temperature from 0 (always the likeliest token) to 2, with --prompt; "
        "default: the setting chat.temperature (0.7)",
        "采样温度，0（总是选概率最高的 token）到 2，与 --prompt 一起使用；默认取设置 chat.temperature（0.7）",
    ),
    "run.max_tokens": (
        "Longest answer in tokens, with --prompt; default: up to the context",
        "回答的最大 token 数，与 --prompt 一起使用；默认直到上下文用完",
    ),
    "run.host": (
        "Address to listen on; default: the setting server.host (127.0.0.1)",
        "监听的地址；默认取设置 server.host（127.0.0.1）",
    ),
    "run.port": (
        "Port to listen on; default: the setting server.port (30000) or the next free one",
        "监听的端口；默认取设置 server.port（30000）或其后第一个空闲端口",
    ),
    "run.api_key": (
        "Key that clients must send; others on this machine can see it in the list of processes, a file or "
        "KT_SERVER_API_KEY hides it; default: the setting server.api_key",
        "客户端须发送的密钥；本机其他用户可在进程列表中看到它，用文件或 KT_SERVER_API_KEY 可避免；默认取设置 server.api_key",
    ),
    "run.api_key_file": (
        "File with keys that clients may send, one a line; default: the setting server.api_key_file",
        "存放客户端可用密钥的文件，每行一个；默认取设置 server.api_key_file",
    ),
    "run.lora": (
        "An adapter in PEFT's form to serve beside the model, asked for as MODEL:NAME; may be given several times; default: none",
        "与模型一起提供的 PEFT 形式适配器，请求时使用 模型:名称；可多次给出；默认无",
    ),
    "run.lora_folder": (
        "Adapters in this folder may be loaded and dropped over the API while the server runs; default: none may",
        "服务运行期间可通过 API 加载和卸载此文件夹中的适配器；默认不允许",
    ),
    "run.no_folder": (
        "{folder} is no folder.\n\nGive the path of a folder.",
        "{folder} 不是文件夹。\n\n请给出文件夹的路径。",
    ),
    "run.memory_adapters": ("adapters", "适配器"),
    "run.memory_prefixes": ("prefixes kept beside the cache", "缓存之外保存的前缀"),
    "run.cors": (
        "Origins of web pages that may use the server, with commas between them; * means any; "
        "default: the setting server.cors (none)",
        "允许使用服务的网页来源，以逗号分隔；* 表示任意来源；默认取设置 server.cors（无）",
    ),
    "run.log_prompts": (
        "Write prompts into the server's log; default: the setting server.log_prompts (off)",
        "将提示词写入服务日志；默认取设置 server.log_prompts（关闭）",
    ),
    "run.bad_key": (
        "An API key holds characters that a header cannot carry.\nKeys are printable, without spaces around them.\nChoose another key.",
        "API 密钥含有请求头无法携带的字符。\n密钥须为可打印字符，且首尾没有空格。\n请换一个密钥。",
    ),
    "run.no_key_file": (
        "There is no file {file} with API keys.\n\nName another one with --api-key-file, or leave it out.",
        "没有存放 API 密钥的文件 {file}。\n\n请用 --api-key-file 另选一个，或省略该选项。",
    ),
    "run.bad_key_file": (
        "The file {file} with API keys cannot be read.\n{reason}\nMend that, or name another one with --api-key-file.",
        "无法读取存放 API 密钥的文件 {file}。\n{reason}\n请修复，或用 --api-key-file 另选一个。",
    ),
    "run.empty_key_file": (
        "The file {file} holds no API key.\nWithout one, everybody could use the server.\nPut one into it, a line each.",
        "文件 {file} 中没有 API 密钥。\n没有密钥时任何人都能使用服务。\n请写入密钥，每行一个。",
    ),
    "run.bad_origin": (
        "{origin} is no origin of a web page.\n\nWrite it like https://example.org:8080, or * for any.",
        "{origin} 不是网页来源。\n\n请写成 https://example.org:8080 的形式，或用 * 表示任意来源。",
    ),
    "run.threads": (
        "CPU threads that compute; default: as many as the plan finds best",
        "参与计算的 CPU 线程数；默认由计划决定",
    ),
    "run.context": (
        "Longest conversation in tokens; default: the model's, or what fits in memory",
        "对话的最大长度（token 数）；默认取模型的长度，或内存允许的长度",
    ),
    "run.max_running": (
        "Requests computed at the same time; the others wait; default: by the threads",
        "同时计算的请求数，其余排队等待；默认由线程数决定",
    ),
    "run.kv_dtype": (
        "Type of cached keys and values: bfloat16, float32 or, on GPUs, fp8_e4m3; default: bfloat16",
        "缓存的键和值的类型：bfloat16、float32，或 GPU 上的 fp8_e4m3；默认 bfloat16",
    ),
    "run.prefix_disk": (
        "Size of the prefixes kept on disk across restarts, such as 20GiB, or off; default: by the free space",
        "保存在磁盘上、重启后仍可用的前缀大小，如 20GiB，或 off；默认由空闲空间决定",
    ),
    "run.prefix_host": (
        "Size of the prefixes kept in memory where the cache is on a GPU, such as 8GiB, or off; default: by the memory that is left",
        "缓存在 GPU 上时，内存中保存的前缀大小，如 8GiB，或 off；默认由剩余内存决定",
    ),
    "run.dry_run": ("Show the plan with its reasons and start nothing", "只显示计划及理由，不启动"),
    "run.rules": (
        "File that says which operator computes each module; default: the rules that come with kt",
        "指定各模块由哪个算子计算的规则文件；默认使用 kt 自带的规则",
    ),
    "run.tool_parser": (
        "How the model writes tool calls (docs/parsers.md has the names); default: the setting server.tool_parser (auto)",
        "模型书写工具调用的方式（名称见 docs/parsers.md）；默认取设置 server.tool_parser（auto）",
    ),
    "run.reasoning_parser": (
        "How the model marks its reasoning; default: the setting server.reasoning_parser (auto)",
        "模型标记思考内容的方式；默认取设置 server.reasoning_parser（auto）",
    ),
    "run.no_rules": (
        "There is no rule file {file}.\n\nGive the path of a file; docs/rules.md tells what it holds.",
        "没有规则文件 {file}。\n\n请给出文件的路径；其内容见 docs/rules.md。",
    ),
    "run.force": ("Go on although the plan says that it does not fit", "即使计划认为放不下也继续"),
    "run.pulling": ("{name} is not on this disk yet: downloading {size}", "本地还没有 {name}：正在下载 {size}"),
    "run.ready": ("{model} is ready at {url}", "{model} 已就绪：{url}"),
    "run.ready_next": (
        "Talk to it with: kt chat    Stop it with Ctrl-C    Log: {log}",
        "对话：kt chat    停止：Ctrl-C    日志：{log}",
    ),
    "run.detach": (
        "Leave the server in the background once it is ready; kt ps, kt logs and kt stop see to it",
        "就绪后让服务器在后台运行；用 kt ps、kt logs 与 kt stop 管理",
    ),
    "run.detached_next": (
        "Talk to it with: kt chat    Log: kt logs    Stop it with: kt stop {pid}",
        "对话：kt chat    日志：kt logs    停止：kt stop {pid}",
    ),
    "run.chat": ("Talk to it here once it is ready; it stops when you leave", "就绪后在此对话；离开时服务器停止"),
    "run.serve_with_prompt": (
        "{option} and --prompt go against each other.\nOne starts a server to use, the other answers once.\n"
        "Leave one of them out.",
        "{option} 与 --prompt 互相矛盾。\n前者启动供使用的服务器，后者只回答一次。\n请去掉其中之一。",
    ),
    "run.chat_detached": (
        "--chat and --detach go against each other.\nA server that was started for a conversation ends with it.\n"
        "Use --detach, and then: kt chat",
        "--chat 与 --detach 互相矛盾。\n为对话启动的服务器随对话结束。\n请使用 --detach，然后运行：kt chat",
    ),
    "run.chat_where": (
        "--chat needs a terminal.\nThere is nobody to talk to here.\nUse --prompt for one answer.",
        "--chat 需要终端。\n这里没有可以对话的人。\n单个回答请使用 --prompt。",
    ),
    "run.stopping": ("Stopping the server", "正在停止服务器"),
    "run.log_at": ("Log: {log}", "日志：{log}"),
    "run.port_taken": (
        "Port {port} is taken.\nAnother program listens there, or this user may not.\n"
        "Leave --port out for a free one, or take: --port {free}",
        "端口 {port} 已被占用。\n另一个程序正在监听该端口，或当前用户无权使用。\n省略 --port 即使用空闲端口，或改用：--port {free}",
    ),
    "run.port_ours": (
        "Port {port} is taken by a server of kt.\nIt serves {model} at {url} (process {pid}).\n"
        "Talk to it with kt chat --url {url}, or take: --port {free}",
        "端口 {port} 已被 kt 的服务器占用。\n它在 {url} 提供 {model}（进程 {pid}）。\n可用 kt chat --url {url} 与它对话，或改用：--port {free}",
    ),
    "run.no_free_port": (
        "No port from {first} to {last} is free.\nOther programs listen on all of them.\nName a free one with --port.",
        "{first} 到 {last} 之间没有空闲端口。\n都被其他程序占用。\n请用 --port 指定一个空闲端口。",
    ),
    "run.bad_host": (
        "Nothing can listen on {host!r}.\n{reason}\nUse 127.0.0.1 for this machine only, or 0.0.0.0 for all networks.",
        "无法在“{host}”上监听。\n{reason}\n仅限本机请用 127.0.0.1，所有网络请用 0.0.0.0。",
    ),
    "run.memory_weights": ("weights", "权重"),
    "run.memory_runtime": ("libraries and tokenizer", "程序库与分词器"),
    "run.memory_templates": ("the process of chat templates", "对话模板进程"),
    "run.memory_rows": ("a step's rows", "一步的中间结果"),
    "run.memory_cache": ("keys and values", "键和值"),
    "run.predicted": ("Predicted speed", "预测速度"),
    "run.predicted_decode": ("answers, one at a time", "单个回答"),
    "run.predicted_prefill": ("prompts of 512 tokens", "512 个 token 的提示"),
    "run.tokens_per_second": ("~{rate} tok/s", "~{rate} tok/s"),
    "run.no_state": (
        "{folder} cannot be written to.\n{reason}\nXDG_STATE_HOME can name another place for logs and state.",
        "无法写入 {folder}。\n{reason}\n可用 XDG_STATE_HOME 指定存放日志与状态的位置。",
    ),
    "run.rules_unread": (
        "The rule file {file} could not be checked.\nReason: {reason}.\nSee: kt doctor",
        "无法检查规则文件 {file}。\n原因：{reason}。\n参见：kt doctor",
    ),
    "run.server_ended": ("The server ended with code {code}.", "服务器已退出，退出码 {code}。"),
    "run.server_killed": ("The server was killed by signal {signal}.", "服务器被信号 {signal} 终止。"),
    "run.perhaps_memory": (
        "Linux does this when memory runs out; a shorter --context needs less.",
        "内存耗尽时 Linux 会这样做；更短的 --context 占用更少内存。",
    ),
    "run.only_with_prompt": (
        "{option} goes with --prompt.\nA server takes it with each request.\nAdd --prompt, or give it to kt chat.",
        "{option} 需与 --prompt 一起使用。\n服务器在每个请求中接受该参数。\n请加上 --prompt，或在 kt chat 中使用。",
    ),
    "run.too_long": (
        "Shorten the prompt, or give room for more tokens with --context.",
        "请缩短提示词，或用 --context 指定更大的上下文。",
    ),
    "run.too_long_model": (
        "Shorten the prompt; the model was made for no longer context.",
        "请缩短提示词；该模型不支持更长的上下文。",
    ),
    "run.column_decision": ("DECISION", "决定"),
    "run.column_value": ("VALUE", "值"),
    "run.column_from": ("FROM", "来源"),
    "run.from_user": ("command line", "命令行"),
    "run.from_config": ("setting", "设置"),
    "run.from_machine": ("machine", "本机"),
    "run.from_model": ("model", "模型"),
    "run.from_default": ("default", "默认"),
    "run.auto": ("auto", "自动"),
    "run.pool": ("{threads} threads", "{threads} 个线程"),
    "run.pool_node": ("node {node}: {threads} threads", "节点 {node}：{threads} 个线程"),
    "run.memory_needed": ("Memory needed", "所需内存"),
    "run.column_reason": ("REASON", "理由"),
    "run.plan_title": ("Plan for {name}: {path}", "{name} 的计划：{path}"),
    "run.would_start": ("Would start: {command}", "将启动：{command}"),
    "run.would_listen": ("Would listen on {host} port {port}", "将监听 {host} 端口 {port}"),
}

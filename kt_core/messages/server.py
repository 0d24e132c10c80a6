"""Messages of the server: HTTP errors, start and stop."""

MESSAGES: dict[str, tuple[str, str]] = {
    "server.field": ("{field}: {reason}", "{field}：{reason}"),
    "server.body": ("The request's body is not valid: {reason}", "请求体无效：{reason}"),
    "server.no_http": ("What was sent is no HTTP request.", "收到的内容不是有效的 HTTP 请求。"),
    "server.too_large": (
        "The request's body is larger than {limit} bytes.",
        "请求体超过 {limit} 字节。",
    ),
    "server.too_slow": (
        "No more of the request's body came within {seconds:g} seconds.",
        "{seconds:g} 秒内没有收到更多的请求体。",
    ),
    "server.no_calls": (
        "{field}: how this model calls tools is not known, so no call can be asked of it.\n"
        "Its chat template has no marks that kt knows.\nChoose a style with --tool-parser, or leave the field out.",
        "{field}：不知道该模型如何调用工具，因此无法要求它调用。\n其聊天模板中没有 kt 认识的标记。\n"
        "请用 --tool-parser 选择一种格式，或去掉该字段。",
    ),
    "server.unsupported_field": (
        "{field}: this value is not supported by this version of kt; it would change the answer, so it is not ignored. "
        "Accepted: {accepted}.",
        "{field}：此版本的 kt 不支持该取值；它会改变回答，因此不能忽略。可接受：{accepted}。",
    ),
    "server.leave_out": ("leave it out", "省略该字段"),
    "server.model_not_found": (
        'The model "{model}" is not served here.\nThis server serves "{served}".',
        "此处不提供模型“{model}”。\n本服务提供的是“{served}”。",
    ),
    "server.unauthorized": (
        "The API key is missing or wrong.\nThis server asks for one.\nSend it as: Authorization: Bearer KEY",
        "API 密钥缺失或错误。\n本服务需要密钥。\n请以 Authorization: Bearer KEY 发送。",
    ),
    "server.unknown_host": (
        "The server does not answer under the name {host}.\n"
        "It is for this machine alone and asks for no API key, so a web page could reach it under a name of its own.\n"
        "Use localhost, or set a key: kt run NAME --api-key-file FILE",
        "服务不以名称 {host} 应答。\n它仅供本机使用且不需要 API 密钥，网页可能借自己的域名访问它。\n"
        "请使用 localhost，或设置密钥：kt run NAME --api-key-file FILE",
    ),
    "server.loading": (
        "The model is loading ({stage}, {done} of {total}).\n\nTry again in a moment; GET /health shows the progress.",
        "模型正在加载（{stage}，{done}/{total}）。\n\n请稍后重试；GET /health 可查看进度。",
    ),
    "server.internal": (
        "The server failed on this request ({reason}).\nThis is a fault in kt.\nThe server's log has the details.",
        "服务处理该请求时失败（{reason}）。\n这是 kt 的缺陷。\n详情见服务日志。",
    ),
    "server.port_in_use": (
        "Cannot listen on {host}:{port}: {reason}.\n"
        "Another program probably uses the port.\n"
        "Choose another one with --port.",
        "无法监听 {host}:{port}：{reason}。\n该端口可能已被其他程序占用。\n请用 --port 另选端口。",
    ),
    "server.bad_address": (
        "Cannot listen on {host}:{port}: there is no such address ({reason}).\n"
        "\nName an address of this machine with --host and --port.",
        "无法监听 {host}:{port}：没有这样的地址（{reason}）。\n\n请用 --host 和 --port 指定本机的地址。",
    ),
    "server.broken_package": (
        "A package that the engine needs is missing or broken.\n{reason}\nSee what is wrong: kt doctor",
        "引擎所需的软件包缺失或损坏。\n{reason}\n查看问题所在：kt doctor",
    ),
    "server.bad_plan": (
        "The plan {path} cannot be read: {reason}",
        "无法读取计划文件 {path}：{reason}",
    ),
    "server.no_state": (
        "The server cannot note that it runs: nothing can be written to {folder}.\n{reason}\n"
        "Mend that, or set XDG_STATE_HOME to a folder that may be written to.",
        "服务无法记录其运行状态：无法写入 {folder}。\n{reason}\n请修复，或将 XDG_STATE_HOME 设为可写的文件夹。",
    ),
    "server.start_failed": (
        "The server could not start: {reason}.\nThis is not a failure that kt knows.\nThe log has the details: {log}",
        "服务无法启动：{reason}。\n这不是 kt 已知的故障。\n详情见日志：{log}",
    ),
    "server.wide_bind": (
        "The server listens on {host}, so other machines can reach it, and no API key is set.",
        "服务监听于 {host}，其他机器可以访问，且未设置 API 密钥。",
    ),
    "server.broken_call": (
        "What the model wrote is no tool call, so it is sent as text (parser {style}: {reason}).",
        "模型写出的内容不是有效的工具调用，因此作为文本发送（解析器 {style}：{reason}）。",
    ),
    "server.one_call": (
        "The model called {name} beside another tool; its chat template takes one call at a time, so this one is left out "
        "(parser {style}).",
        "模型在另一个工具之外还调用了 {name}；其对话模板一次只接受一个调用，因此略去此调用（解析器 {style}）。",
    ),
    "server.no_parser": (
        "There is no parser called {name} for {setting}.\n\nKnown: {known}",
        "{setting} 没有名为 {name} 的解析器。\n\n可用的有：{known}",
    ),
    "server.standard_error": ("standard error", "标准错误输出"),
}

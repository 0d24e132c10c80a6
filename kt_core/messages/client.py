"""Messages of the command line's HTTP client."""

MESSAGES: dict[str, tuple[str, str]] = {
    "client.tokens_in": ("{count} tokens in, {rate} tok/s", "输入 {count} 个 token，{rate} tok/s"),
    "client.tokens_out": ("{count} tokens out, {rate} tok/s", "输出 {count} 个 token，{rate} tok/s"),
    "client.cached": ("{count} from the cache", "其中 {count} 个来自缓存"),
    "client.first": ("first after {seconds} s", "首个 token 用时 {seconds} 秒"),
    "client.context": ("context {used} of {context}", "上下文 {used} / {context}"),
    "client.no_models": (
        "{url} answers, but it has no list of models.\nThe address of a server ends where /v1 begins.\nTry: kt chat --url {root}",
        "{url} 有响应，但没有模型列表。\n服务器地址应止于 /v1 之前。\n请尝试：kt chat --url {root}",
    ),
    "client.no_file": (
        "There is no file {file}.\n\nName another one, or - for standard input.",
        "没有文件 {file}。\n\n请换一个文件，或用 - 表示标准输入。",
    ),
    "client.bad_file": (
        "{file} cannot be read as text.\n{reason}\nOnly text goes along with a question; convert the file first.",
        "无法将 {file} 作为文本读取。\n{reason}\n问题只能附带文本，请先转换该文件。",
    ),
    "client.no_vision": (
        "{model} reads text only and sees no images.\nThe server says so.\nAsk without the image, or serve a model that sees images: kt run MODEL",
        "{model} 只能读取文本，不能读图。\n服务器如此声明。\n请去掉图像，或运行能读图的模型：kt run MODEL",
    ),
    "client.no_image": (
        "{name} is no image.\nIts first bytes are of none of these: {known}\nConvert it, or send it as a text with /file or -f.",
        "{name} 不是图像。\n其开头不属于以下格式：{known}\n请先转换，或用 /file、-f 作为文本发送。",
    ),
    "client.large_image": (
        "{name} is larger than {limit} MiB.\nThe server reads no larger images.\nScale it down first.",
        "{name} 超过 {limit} MiB。\n服务器不读取更大的图像。\n请先缩小。",
    ),
    "client.bad_image": (
        "{file} cannot be read.\n{reason}\nName an image: a file or an http(s) address.",
        "无法读取 {file}。\n{reason}\n请指定图像：文件或 http(s) 地址。",
    ),
    "client.no_fetch": (
        "{url} cannot be fetched.\n{reason}\nDownload the image, then name the file.",
        "无法获取 {url}。\n{reason}\n请先下载图像，再指定该文件。",
    ),
    "client.two_stdin": (
        "Standard input is asked for twice.\nIt can be the question or a file, and not both.\nPut one of them into a file.",
        "重复使用了标准输入。\n它只能作为问题或文件之一。\n请将其中之一存为文件。",
    ),
    "client.cut": ("cut at the token limit", "达到 token 上限而截断"),
    "client.empty_question": (
        "The question is empty.\nThere is nothing to answer.\nPass some text.",
        "问题为空。\n没有可回答的内容。\n请提供文字。",
    ),
    "client.not_text": (
        "The question is not valid {encoding} text.\nCharacter {position} cannot be decoded.\n"
        "Convert it first, for example: iconv -f GB18030 -t {encoding}",
        "问题不是有效的 {encoding} 文本。\n第 {position} 个字符无法解码。\n请先转换编码，例如：iconv -f GB18030 -t {encoding}",
    ),
    "client.not_a_server": (
        "{url} answers, but not like a kt server.\nIts list of models cannot be read.\nCheck the address.",
        "{url} 有响应，但不像是 kt 服务器。\n无法读取它的模型列表。\n请检查地址。",
    ),
    "client.broken_stream": (
        "The answer broke off.\nThe server at {url} closed the connection before the end.\n"
        "Ask again, or if the server is gone, start it: kt run MODEL",
        "回答中断了。\n服务器 {url} 在结束前关闭了连接。\n请重试；若服务器已退出，请启动：kt run MODEL",
    ),
    "client.no_answer": (
        "No server answers at {url}.\n{reason}\nStart one with: kt run MODEL",
        "{url} 上没有服务器响应。\n{reason}\n启动服务器：kt run MODEL",
    ),
    "client.silent": (
        "{url} accepted the connection and then sent nothing for {seconds} s.\nThe server hangs, or is too slow for what was asked, or something else listens there.\n"
        "See the server's log; kt bench waits longer with --timeout SECONDS.",
        "{url} 接受了连接，但 {seconds} 秒内没有发送任何内容。\n服务卡住了，或对所请求的内容来说太慢，或监听的是其他程序。\n"
        "请查看服务日志；kt bench 可用 --timeout SECONDS 等待更久。",
    ),
    "client.waits": (
        "Still waiting for {url}, which accepted the connection; given up after {seconds} s without a word.",
        "仍在等待 {url} 响应（连接已接受）；{seconds} 秒没有响应则放弃。",
    ),
    "client.bad_url": (
        "{url!r} is not the address of a server.\n\nFor example: http://127.0.0.1:30000",
        "“{url}”不是服务器地址。\n\n例如：http://127.0.0.1:30000",
    ),
    "client.unauthorised": ("The server wants an API key.", "服务器需要 API 密钥。"),
    "client.unauthorised_next": ("kt config set server.api_key KEY", "kt config set server.api_key KEY"),
    "client.loading": (
        "The server is still loading its model.\n\nTry again soon.",
        "服务器仍在加载模型。\n\n请稍后再试。",
    ),
    "client.refused": (
        "The server refused the request with status {status}.\n\nSee what runs here: kt ps",
        "服务器拒绝了请求，状态码 {status}。\n\n查看运行中的服务器：kt ps",
    ),
}

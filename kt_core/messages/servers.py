"""Messages of `kt ps`, `kt stop` and `kt logs`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "servers.ps_help": (
        "List the servers that run\n"
        "With what they hold and do: memory, context, running and waiting requests, and the speed that the plan predicts.",
        "列出运行中的服务器\n并显示其占用与状态：内存、上下文、正在处理和排队的请求，以及计划预测的速度。",
    ),
    "servers.ps_examples": ("kt ps\nkt ps --json\nkt ps -q", "kt ps\nkt ps --json\nkt ps -q"),
    "servers.stop_help": (
        "Stop a server\nAnswers that are being written are cut off. A server that does not end within 10 seconds is killed.",
        "停止服务器\n正在生成的回答会中断。10 秒内没有结束的服务器会被强制终止。",
    ),
    "servers.stop_examples": (
        "kt stop\nkt stop demo\nkt stop 30001\nkt stop --all",
        "kt stop\nkt stop demo\nkt stop 30001\nkt stop --all",
    ),
    "servers.logs_help": (
        "Show the log of a server\nOf the server that runs, or else of the newest one that has ended. Prompts are not in it "
        "unless the server was started with --log-prompts.",
        "显示服务器的日志\n显示运行中的服务器的日志；没有时显示最近结束的服务器的日志。除非启动时使用了 --log-prompts，日志中没有提示词。",
    ),
    "servers.logs_examples": (
        "kt logs\nkt logs -f\nkt logs demo --lines 500\nkt logs -q    # the path of the file",
        "kt logs\nkt logs -f\nkt logs demo --lines 500\nkt logs -q    # 文件的路径",
    ),
    "servers.name": (
        "Which server: its model's name, port, process id or address; not needed where one runs",
        "哪个服务器：模型名称、端口、进程号或地址；只有一个运行时可省略",
    ),
    "servers.all": ("Every server", "所有服务器"),
    "servers.follow": ("Go on with what is written, until the server ends", "持续显示新内容，直到服务器结束"),
    "servers.lines": ("How many of the last lines; 0: all; default: 50", "显示最后多少行；0 表示全部；默认 50"),
    "servers.none": (
        "No server is running.\n\nStart one with: kt run MODEL --detach",
        "没有运行中的服务器。\n\n启动服务器：kt run MODEL --detach",
    ),
    "servers.no_such": (
        "No server goes by {name}.\nRunning: {found}\nSee: kt ps",
        "没有名为 {name} 的服务器。\n正在运行：{found}\n参见：kt ps",
    ),
    "servers.several": (
        "Several servers may be meant.\nRunning: {found}\nName one by its process id, such as {pid}.",
        "可能指多个服务器。\n正在运行：{found}\n请用进程号指定，例如 {pid}。",
    ),
    "servers.all_or_one": (
        "--all and a name go against each other.\nOne stops every server, the other a single one.\nLeave one of them out.",
        "--all 与名称互相矛盾。\n前者停止所有服务器，后者只停止一个。\n请去掉其中之一。",
    ),
    "servers.which": ("Which server?", "哪个服务器？"),
    "servers.one": ("{model} at {url} (process {pid})", "{model}（{url}，进程 {pid}）"),
    "servers.stopped": ("Stopped {model} at {url}", "已停止 {model}（{url}）"),
    "servers.killed": (
        "{model} at {url} did not stop when asked, and was killed.",
        "{model}（{url}）未响应停止请求，已强制终止。",
    ),
    "servers.not_stopped": (
        "Process {pid} could not be stopped.\n{reason}\nLook at it with ps {pid}.",
        "无法停止进程 {pid}。\n{reason}\n请用 ps {pid} 查看。",
    ),
    "servers.still_there": ("The system has not ended it yet.", "系统尚未将其结束。"),
    "servers.no_log": (
        "There is no log.\nNo server has run here, or its log was removed.\nStart one with: kt run MODEL",
        "没有日志。\n这里没有运行过服务器，或日志已被删除。\n启动服务器：kt run MODEL",
    ),
    "servers.no_log_of": (
        "There is no log of {name}.\nThere are logs of: {found}\nLeave the name out for the newest one.",
        "没有 {name} 的日志。\n有以下模型的日志：{found}\n省略名称即显示最新的日志。",
    ),
    "servers.log_unreadable": (
        "The log {file} cannot be read.\n{reason}\nStart the server anew for a new log.",
        "无法读取日志 {file}。\n{reason}\n重新启动服务器可生成新的日志。",
    ),
    "servers.follow_json": (
        "--follow and --json go against each other.\nA JSON document has an end.\nLeave one of them out.",
        "--follow 与 --json 互相矛盾。\nJSON 文档需要有结尾。\n请去掉其中之一。",
    ),
    "servers.state_ready": ("ready", "就绪"),
    "servers.state_loading": ("loading", "加载中"),
    "servers.state_silent": ("no answer", "无响应"),
    "servers.loading_part": ("loading {percent} %", "加载中 {percent} %"),
    "servers.busy": ("{running} run, {waiting} wait", "{running} 个处理中，{waiting} 个排队"),
    "servers.idle": ("idle", "空闲"),
    "servers.column_model": ("MODEL", "模型"),
    "servers.column_state": ("STATE", "状态"),
    "servers.column_address": ("ADDRESS", "地址"),
    "servers.column_pid": ("PROCESS", "进程"),
    "servers.column_memory": ("MEMORY", "内存"),
    "servers.column_requests": ("REQUESTS", "请求"),
    "servers.seconds": ("{count} s", "{count} 秒"),
    "servers.minutes": ("{count} min", "{count} 分钟"),
    "servers.hours": ("{count} h", "{count} 小时"),
    "servers.days": ("{count} d", "{count} 天"),
    "servers.up": ("up {duration}", "已运行 {duration}"),
    "servers.context": ("context {tokens}", "上下文 {tokens}"),
    "servers.on": ("planned on {device} {size}", "计划在 {device} 上 {size}"),
    "servers.threads": ("{count} threads", "{count} 个线程"),
    "servers.speed": ("predicted ~{rate} tok/s", "预测 ~{rate} tok/s"),
}

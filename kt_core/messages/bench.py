"""Messages of the bench room."""

MESSAGES: dict[str, tuple[str, str]] = {
    "bench.stage_weights": ("Making {format} weights", "生成 {format} 权重"),
    "bench.stage_caches": ("Making {format} caches", "生成 {format} 缓存"),
    "bench.stage_rows": ("Measuring", "测量"),
    "bench.unknown_shape": (
        "There is no model shape called {name}.\nKnown: {known}.\nName one of these, or give --hidden, --intermediate, --experts and --top-k.",
        "没有名为 {name} 的模型形状。\n可选：{known}。\n请从中选择，或指定 --hidden、--intermediate、--experts 与 --top-k。",
    ),
    "bench.unknown_shape_near": (
        "There is no model shape called {name}; did you mean {near}?\nKnown: {known}.\nName one of these, or give --hidden, --intermediate, --experts and --top-k.",
        "没有名为 {name} 的模型形状；您是否想输入 {near}？\n可选：{known}。\n请从中选择，或指定 --hidden、--intermediate、--experts 与 --top-k。",
    ),
    "bench.unknown_format": (
        "There is no weight format called {name}.\nFormats with a kernel: {known}.\nName one or several of these, separated by commas.",
        "没有名为 {name} 的权重格式。\n有内核的格式：{known}。\n请从中选择一个或多个，以逗号分隔。",
    ),
    "bench.no_kernel": (
        "Weight format {name} has no CPU kernel.\nFormats with a kernel: {known}.\nName one or several of these, separated by commas.",
        "权重格式 {name} 没有 CPU 内核。\n有内核的格式：{known}。\n请从中选择一个或多个，以逗号分隔。",
    ),
    "bench.no_cache": (
        "Attention's caches are not kept in {name}.\nThey can be in: {known}.\nName one or both of these.",
        "注意力缓存不能以 {name} 存放。\n可用：{known}。\n请从中选择一个或两个。",
    ),
    "bench.few_keys": (
        "{tokens} tokens cannot ask a cache of {keys} keys.\nTheir own keys are in it too.\nMake --keys at least as large as --tokens.",
        "{tokens} 个 token 不能查询只有 {keys} 个键的缓存。\n它们自己的键也在其中。\n请使 --keys 不小于 --tokens。",
    ),
    "bench.blocks": (
        "Weight format {format} cannot hold rows of {cols} values.\nIts blocks have {block} values each, and a row is whole blocks.\n"
        "Name another format with --formats, or another shape.",
        "权重格式 {format} 无法存放每行 {cols} 个值的矩阵。\n每块 {block} 个值，而一行必须由完整的块组成。\n请用 --formats 指定其他格式，或换一个形状。",
    ),
    "bench.rows": (
        "Weight format {format} cannot hold {rows} rows.\nIt stores {multiple} rows in one word, so their number is a multiple of that.\n"
        "Name another format with --formats, or another shape.",
        "权重格式 {format} 无法存放 {rows} 行的矩阵。\n它将 {multiple} 行存于一个字中，行数必须是其整数倍。\n请用 --formats 指定其他格式，或换一个形状。",
    ),
    "bench.own_sizes": ("A layer of these sizes", "这些尺寸的层"),
    "bench.one_does_not_fit": (
        "{name} with {format} does not fit in memory, however few are taken.\nIt takes {needed}, {available} may be used.\n"
        "Take smaller sizes, fewer --tokens or --keys, or a format of fewer bits.",
        "即使只取一个，内存也放不下 {format} 的“{name}”。\n需要 {needed}，可用 {available}。\n请减小尺寸、--tokens 或 --keys，或使用位数更少的格式。",
    ),
    "bench.left_out": (
        "Left out, because their blocks do not divide this shape: {formats}",
        "已略去（其块大小不能整除此形状）：{formats}",
    ),
    "bench.top_k": (
        "A token cannot go to {top_k} of {experts} experts.\nIt goes to different ones.\nMake --experts at least as large as --top-k.",
        "一个 token 不能分配给 {experts} 个专家中的 {top_k} 个。\n所选专家必须互不相同。\n请使 --experts 不小于 --top-k。",
    ),
    "bench.does_not_fit": (
        "{name} with {format} weights does not fit in memory: {layers} layers of {experts} experts.\n"
        "It takes {needed} ({unit} an expert), {available} may be used.\nTake fewer experts (--experts {fits}), fewer --layers, or a format of fewer bits.",
        "内存放不下 {format} 权重的 {name}：{layers} 层，每层 {experts} 个专家。\n需要 {needed}（每个专家 {unit}），可用 {available}。\n"
        "请减少专家（--experts {fits}）、减少 --layers，或使用位数更少的格式。",
    ),
    "bench.linear_does_not_fit": (
        "{name} with {format} weights does not fit in memory: {layers} layers of {unit}.\n"
        "It takes {needed}, {available} may be used.\nTake fewer --layers (at most {fits}), or a format of fewer bits.",
        "内存放不下 {format} 权重的 {name}：{layers} 层，每层 {unit}。\n需要 {needed}，可用 {available}。\n请减少 --layers（最多 {fits}），或使用位数更少的格式。",
    ),
    "bench.caches_do_not_fit": (
        "{name} with {format} caches does not fit in memory: {layers} layers of {unit}.\n"
        "It takes {needed}, {available} may be used.\nTake fewer --layers (at most {fits}), or fewer --keys.",
        "内存放不下 {format} 缓存的 {name}：{layers} 层，每层 {unit}。\n需要 {needed}，可用 {available}。\n请减少 --layers（最多 {fits}）或 --keys。",
    ),
    "bench.warm": (
        "{format}: the weights of {layers} layers in turn fit in the caches in part, so rates are above the memory's",
        "{format}：轮流使用的 {layers} 层权重有一部分留在缓存中，速率会高于内存本身",
    ),
    "bench.broken_package": (
        "The bench could not start: a package is missing or broken.\n{reason}\nSee: kt doctor",
        "测量无法启动：缺少软件包或软件包已损坏。\n{reason}\n参见：kt doctor",
    ),
    "bench.failed": (
        "The bench failed in a way that it should not.\n{reason}\nThe trace is in the log.",
        "测量发生了不应出现的故障。\n{reason}\n调用栈在日志中。",
    ),
    "bench.help": (
        "Measure a server's speed, the machine and the kernels; compare runs\n"
        "Without a command it is kt bench inference: with a NAME a model that runs, or else is started for the run.",
        "测量服务速度、本机与内核，并比较各次结果\n不带命令即 kt bench inference：给出 NAME 时使用正在运行的该模型，否则为此次测量启动它。",
    ),
    "bench.examples": (
        "kt bench demo\nkt bench demo --prompt 128,2048 --output 64 --concurrency 1,4,8\n"
        "kt bench --url http://127.0.0.1:30000 --depth 4096 --save today\nkt bench compare yesterday today",
        "kt bench demo\nkt bench demo --prompt 128,2048 --output 64 --concurrency 1,4,8\n"
        "kt bench --url http://127.0.0.1:30000 --depth 4096 --save today\nkt bench compare yesterday today",
    ),
    "bench.inference_help": (
        "Send requests of known lengths to a server and time every piece of the answers\n"
        "Prompts are words in random order, so nothing of them is cached but what --depth asks for; answers have exactly the length "
        "asked for. Times are as a client sees them: p50 / p90 / p99.",
        "向服务发送长度已知的请求，并记录回答每一部分的时间\n提示由随机排列的单词组成，除 --depth 指定的部分外不会命中缓存；"
        "回答长度与要求完全一致。时间为客户端所见：p50 / p90 / p99。",
    ),
    "bench.name": ("Model; default: the one that runs", "模型；默认为正在运行的模型"),
    "bench.url": (
        "Address of a server, of kt or another with the same API; default: none, a server of this machine",
        "服务地址，可为 kt 或其他具有相同 API 的服务；默认：无，使用本机的服务",
    ),
    "bench.prompt": (
        "New tokens of a prompt: a list, or ranges such as 64-512; default: 512",
        "提示中新的 token 数：列表，或 64-512 这样的范围；默认为 512",
    ),
    "bench.output": ("Tokens of an answer, likewise; default: 128", "回答的 token 数，同上；默认为 128"),
    "bench.concurrency": ("Requests at a time, a list; default: 1", "同时进行的请求数，列表；默认为 1"),
    "bench.depth": (
        "Tokens before the prompt that the server has in its cache, a list; default: 0",
        "提示之前已在服务缓存中的 token 数，列表；默认为 0",
    ),
    "bench.repeats": ("Rounds of requests in each case; default: 3", "每种情形的请求轮数；默认为 3"),
    "bench.seed": (
        "Number that prompts are drawn from; default: new prompts each time",
        "生成提示所用的随机种子；默认：每次使用新的提示",
    ),
    "bench.api_key": ("Key of the server; default: the key that kt was given", "服务的密钥；默认：kt 已有的密钥"),
    "bench.save": (
        "Keep the run under this name, for comparison; default: none",
        "以此名称保存结果，供比较；默认：不保存",
    ),
    "bench.compare": ("Show this earlier run beside it; default: none", "与此前保存的结果并列显示；默认：无"),
    "bench.csv": ("Write the rows as CSV; default: none", "将各行写为 CSV；默认：无"),
    "bench.markdown": ("Write the report as markdown; default: none", "将报告写为 markdown；默认：无"),
    "bench.plot": (
        "Draw rates and times as a picture (PNG, SVG or PDF); default: none",
        "将速率与时间绘成图片（PNG、SVG 或 PDF）；默认：无",
    ),
    "bench.run": ("Name of a saved run, or a file of one", "已保存结果的名称，或其文件"),
    "bench.compare_help": (
        "Two saved runs side by side\nA ratio above 1 means that the second is faster.",
        "并列显示两次保存的结果\n比值大于 1 表示后一次更快。",
    ),
    "bench.mla_help": (
        "Measure attention over compressed caches, as DeepSeek's models have it\nFor the columns see: kt bench moe --help",
        "测量压缩缓存上的注意力（DeepSeek 系列模型）\n各列含义见：kt bench moe --help",
    ),
    "bench.title": ("{model} at {url}", "{model}，{url}"),
    "bench.stage": (
        "{prompt} + {output} tokens, {concurrency} at a time, depth {depth}",
        "{prompt} + {output} 个 token，并发 {concurrency}，深度 {depth}",
    ),
    "bench.bars": ("Tokens a second of all answers together:", "全部回答合计的每秒 token 数："),
    "bench.column_prompt": ("PROMPT", "提示"),
    "bench.column_output": ("OUTPUT", "输出"),
    "bench.column_concurrency": ("AT ONCE", "并发"),
    "bench.column_depth": ("DEPTH", "深度"),
    "bench.column_first": ("FIRST TOKEN ms", "首个 token ms"),
    "bench.column_between": ("BETWEEN ms", "间隔 ms"),
    "bench.column_request": ("REQUEST ms", "请求 ms"),
    "bench.column_prefill": ("PREFILL tok/s", "预填充 tok/s"),
    "bench.column_decode": ("DECODE tok/s", "解码 tok/s"),
    "bench.column_all": ("ALL tok/s", "合计 tok/s"),
    "bench.column_failed": ("FAILED", "失败"),
    "bench.column_case": ("CASE", "情形"),
    "bench.column_figure": ("FIGURE", "指标"),
    "bench.column_before": ("BEFORE", "之前"),
    "bench.column_after": ("AFTER", "之后"),
    "bench.column_ratio": ("RATIO", "比值"),
    "bench.figure_prefill_rate": ("prefill, tok/s", "预填充 tok/s"),
    "bench.figure_decode_rate": ("decode, tok/s", "解码 tok/s"),
    "bench.figure_output_rate": ("all, tok/s", "合计 tok/s"),
    "bench.figure_first_token_p50": ("first token, s", "首个 token，秒"),
    "bench.figure_between_tokens_p50": ("between tokens, s", "token 间隔，秒"),
    "bench.nothing_common": ("The two runs have no case in common.", "两次结果没有相同的情形。"),
    "bench.other_machine": ("They were made on different machines.", "两次结果来自不同的机器。"),
    "bench.beside": (
        "Decoding alone: {measured} tok/s; predicted {predicted} ({share}).",
        "单独解码：{measured} tok/s；预测 {predicted}（{share}）。",
    ),
    "bench.limit_quota": (
        "Limited by a CPU quota: {threads} threads share {quota} CPUs. Take that many with --threads, or raise the quota.",
        "受 CPU 配额限制：{threads} 个线程共用 {quota} 个 CPU。请用 --threads 取相应数量，或提高配额。",
    ),
    "bench.limit_threads": (
        "Limited by too many threads: {threads} on {cores} cores. Let the plan choose, or give --threads {cores}.",
        "线程过多：{cores} 个核上有 {threads} 个线程。请交由计划决定，或指定 --threads {cores}。",
    ),
    "bench.limit_tier": (
        "Limited by the kernel tier: {tier} was chosen, this CPU runs {best}. Unset KT_KERNEL_CPU_VARIANT, or see: kt doctor",
        "受内核级别限制：使用了 {tier}，而此 CPU 可运行 {best}。请取消 KT_KERNEL_CPU_VARIANT，或查看：kt doctor",
    ),
    "bench.limit_node": (
        "Limited by where memory lies: {note}",
        "受内存所在位置限制：{note}",
    ),
    "bench.limit_memory": (
        "Limited by memory that is slower than this machine's: {reads} GB/s just now, {profile} in its profile. Something else uses it; stop that and measure again.",
        "受内存速度限制：当前 {reads} GB/s，而本机档案为 {profile} GB/s。有其他程序在使用内存；请停止后重新测量。",
    ),
    "bench.limit_bandwidth": (
        "Limited by memory bandwidth, as decoding should be.",
        "受内存带宽限制；解码理应如此。",
    ),
    "bench.limit_arithmetic": ("Limited by arithmetic, as a prompt should be.", "受运算能力限制；提示处理理应如此。"),
    "bench.limit_unknown": (
        "It reaches {share} of the prediction, and no known cause explains that. Is the machine idle? Measure it anew: kt bench machine",
        "仅达到预测的 {share}，且没有已知原因。机器是否空闲？请重新测量：kt bench machine",
    ),
    "bench.clients_many": (
        "{clients} clients are more than kt bench starts.\nThe limit is {most}.\nName fewer.",
        "{clients} 个客户端超出 kt bench 可启动的数量。\n上限为 {most}。\n请减少。",
    ),
    "bench.limit_unmeasured": (
        "What limits it is not known, because this machine has not been measured. Once: kt bench machine",
        "限制因素未知，因为尚未测量本机。请测量一次：kt bench machine",
    ),
    "bench.no_rows": ("It has another version, or its rows lack figures.", "其版本不同，或其数据行缺少数值。"),
    "bench.cut_short": ("the answer ended before its end", "回答提前结束"),
    "bench.no_text": ("an answer without text", "回答没有文本"),
    "bench.no_usage": (
        "the answer does not say how many tokens it has (usage), so no rate is known",
        "回答未说明其 token 数（usage），因此无法得知速率",
    ),
    "bench.no_event": ("a line of the answer is no event of a completion: {line}", "回答中有一行不是补全事件：{line}"),
    "bench.resident": ("The server holds {size} of memory.", "服务占用 {size} 内存。"),
    "bench.joules": ("The CPU packages used {joules} J.", "各 CPU 封装共消耗 {joules} J。"),
    "bench.written": ("Written: {path}", "已写入：{path}"),
    "bench.a_failure": ("A request failed: {reason}", "一个请求失败：{reason}"),
    "bench.all_failed": (
        "None of {count} requests got an answer.\nThe first one: {reason}\nAsk the server for less, or see its log.",
        "{count} 个请求都没有得到回答。\n第一个：{reason}\n请减小请求，或查看服务日志。",
    ),
    "bench.bad_lengths": (
        "{option} does not take {text}.\nExpected: numbers above 0 or ranges of them, separated by commas.\nFor example: {option} 128,512-1024",
        "{option} 不能为 {text}。\n应为大于 0 的数或其范围，以逗号分隔。\n例如：{option} 128,512-1024",
    ),
    "bench.bad_depths": (
        "--depth does not take {text}.\nExpected: numbers from 0, separated by commas.\nFor example: --depth 0,4096",
        "--depth 不能为 {text}。\n应为不小于 0 的整数，以逗号分隔。\n例如：--depth 0,4096",
    ),
    "bench.timeout": (
        "Give a server up that sends nothing for so long; default: 600",
        "服务持续这么久没有发送内容则放弃；默认为 600",
    ),
    "bench.waits": (
        "Still waiting for {url}: nothing has come for {silent} s; given up after {seconds} s.",
        "仍在等待 {url}：已 {silent} 秒没有收到内容；{seconds} 秒后放弃。",
    ),
    "bench.connection": ("the connection broke: {reason}", "连接中断：{reason}"),
    "bench.connection_lost": ("the server closed the connection", "服务关闭了连接"),
    "bench.bad_name": (
        "A run cannot be called {name}.\nNames have letters, digits, dots, dashes and underscores, and begin with a letter or digit.\nGive another --save.",
        "结果不能命名为 {name}。\n名称由字母、数字、点、连字符与下划线组成，并以字母或数字开头。\n请为 --save 换一个名称。",
    ),
    "bench.no_run": (
        "There is no saved run called {name}.\nSaved: {known}.\nKeep one with: kt bench NAME --save {name}",
        "没有名为 {name} 的已保存结果。\n已保存：{known}。\n保存方法：kt bench NAME --save {name}",
    ),
    "bench.no_runs": (
        "There is no saved run called {name}.\nNothing has been saved yet.\nKeep one with: kt bench NAME --save {name}",
        "没有名为 {name} 的已保存结果。\n尚未保存过任何结果。\n保存方法：kt bench NAME --save {name}",
    ),
    "bench.no_run_file": (
        "There is no file {path}.\nA name that ends in .json is a file of a run.\nCheck the path, or give the name of a saved run.",
        "文件 {path} 不存在。\n以 .json 结尾的名称是结果的文件。\n请检查路径，或给出已保存结果的名称。",
    ),
    "bench.bad_run": (
        "{path} is not a saved run.\n{reason}\nMeasure again with --save.",
        "{path} 不是已保存的结果。\n{reason}\n请用 --save 重新测量。",
    ),
    "bench.no_server": (
        "No server runs here.\nWithout a model's name there is nothing to start.\nName one: kt bench NAME",
        "此处没有正在运行的服务。\n未给出模型名称，无法启动。\n请指定：kt bench NAME",
    ),
    "bench.no_folder": (
        "Folder {folder} does not exist.\nThe file would be written there.\nMake it, or name another place.",
        "文件夹 {folder} 不存在。\n文件将写入该处。\n请创建它，或指定其他位置。",
    ),
    "bench.bad_picture": (
        "{path} is no picture's name.\nPictures are PNG, SVG or PDF.\nEnd the name with .png, for example.",
        "{path} 不是图片名称。\n图片可为 PNG、SVG 或 PDF。\n请以 .png 等结尾。",
    ),
    "bench.no_matplotlib": (
        'Pictures need matplotlib, which is not installed.\nIt is in kt\'s extra "plot".\nInstall it: pip install matplotlib',
        '绘图需要 matplotlib，但尚未安装。\n它包含在 kt 的可选组件 "plot" 中。\n请安装：pip install matplotlib',
    ),
}

"""Messages on flags of other programs: what each does here, or why nothing."""

MESSAGES: dict[str, tuple[str, str]] = {
    "flags.has_no_effect": ("{name} has no effect: {reason}.", "{name} 不起作用：{reason}。"),
    "flags.have_no_effect": (
        "Without effect, since the plan is for the CPU alone: {names}.",
        "计划只用 CPU，因此不起作用：{names}。",
    ),
    "flags.refused": (
        "{name} cannot be used here.\nWith kt, {reason}.\nLeave it out.",
        "此处不能使用 {name}。\n原因：{reason}。\n请去掉它。",
    ),
    "flags.no_value": (
        "{name} needs a value.\nIt takes {takes}.\nGive one, or leave it out.",
        "{name} 缺少值。\n它需要 {takes}。\n请给出值，或去掉它。",
    ),
    "flags.bad_value": (
        "{name} cannot be {value}.\nIt takes {takes}.\nGive such a value, or leave it out.",
        "{name} 的值不能为 {value}。\n它需要 {takes}。\n请给出这样的值，或去掉它。",
    ),
    "flags.bad_command": (
        "This is no command that starts a server: {reason}.\nThere are no flags in it, or its quotes do not end.\n"
        "Give it in one pair of quotes: kt plan --from 'python -m sglang.launch_server --model-path DIR'",
        "这不是启动服务器的命令：{reason}。\n其中没有参数，或引号没有配对。\n"
        "请整体放在一对引号中：kt plan --from 'python -m sglang.launch_server --model-path DIR'",
    ),
    "flags.two_folders": (
        "{model} is not read: kt runs {weights}, one copy of the weights for CPU and GPU.",
        "不会读取 {model}：kt 运行 {weights}，CPU 与 GPU 共用一份权重。",
    ),
    "flags.from_help": (
        "Plan for a command that starts a server of SGLang or KTransformers, in one pair of quotes; default: none",
        "为启动 SGLang 或 KTransformers 服务器的命令制定计划，整条命令放在一对引号中；默认：无",
    ),
    # what used flags become
    "flags.same": ("as there", "含义相同"),
    "flags.model": ("the model that is run; NAME is shorter", "要运行的模型；可直接写 NAME"),
    "flags.weight_path": (
        "the model that is run, before the other path: there is one copy of the weights",
        "要运行的模型，优先于另一路径：权重只有一份",
    ),
    "flags.threads": ("threads of the kernels, one for each physical core at most", "内核线程数，至多每个物理核一个"),
    "flags.context": ("the longest conversation, in tokens", "最长对话的 token 数"),
    "flags.running": ("requests that run at the same time", "同时运行的请求数"),
    "flags.kv_dtype": (
        "how keys and values are kept: bfloat16, float32 or fp8_e4m3",
        "键和值的保存类型：bfloat16、float32 或 fp8_e4m3",
    ),
    "flags.tools": ("the parser of tool calls, under kt's name for it", "工具调用解析器，换用 kt 的名称"),
    "flags.reasoning": ("the parser of reasoning, under kt's name for it", "推理内容解析器，换用 kt 的名称"),
    "flags.to_served_name": ("what the API calls the model", "API 中的模型名称"),
    "flags.to_method": (
        "checked against the stored form of the weights, which is what kt computes with",
        "与权重的存储格式核对，kt 按存储格式计算",
    ),
    "flags.to_pools": ("pools of threads; left out, one for each NUMA node", "线程池个数；不指定则每个 NUMA 节点一个"),
    "flags.to_nodes": (
        "the NUMA nodes whose CPUs are used, a pool for each",
        "使用哪些 NUMA 节点的 CPU，每个一个线程池",
    ),
    "flags.to_gpu_experts": ("experts of each layer that a GPU keeps", "每层放在 GPU 上的专家数"),
    "flags.to_gpu_experts_ratio": (
        "the same as a part of all, from 0 to 1; it goes before the count",
        "同上，以 0 到 1 的比例给出；优先于个数",
    ),
    "flags.to_deferred": (
        "experts of a token whose result a layer may take from the step before; 0 is exact",
        "每个 token 可推迟一层合并结果的专家数；0 为精确",
    ),
    "flags.to_prefill_threshold": (
        "tokens of a prompt step from which whole layers are streamed to the GPU",
        "提示处理一步达到多少 token 时逐层送往 GPU",
    ),
    "flags.to_placement": (
        "which experts a GPU keeps: uniform, frequency, front-loading, random or dynamic",
        "GPU 保存哪些专家：uniform、frequency、front-loading、random 或 dynamic",
    ),
    "flags.to_moving": (
        "placement dynamic: experts that are asked for come to the GPU while the model runs",
        "即 dynamic 放置：运行时把被调用的专家移到 GPU",
    ),
    "flags.to_expert_statistics": (
        "how often each expert was asked, for placement by frequency",
        "各专家被调用的次数，用于按频率放置",
    ),
    "flags.to_cache_tokens": (
        "tokens of all conversations together that the cache holds",
        "缓存可容纳的所有对话的 token 总数",
    ),
    "flags.to_vram_share": ("the part of a GPU's memory that kt may take, from 0 to 1", "kt 可占用的显存比例，0 到 1"),
    "flags.to_vram_budget": ("the same as a size, 20GiB, or as a part, 0.8", "同上，可写大小 20GiB 或比例 0.8"),
    "flags.to_chunk": (
        "most tokens of a prompt that one step on the GPU computes",
        "GPU 上一步最多计算的提示 token 数",
    ),
    "flags.to_tensor": ("GPUs that share every layer", "共同计算每一层的 GPU 数"),
    "flags.to_pipeline": ("GPUs that take a run of layers each", "各自负责若干层的 GPU 数"),
    "flags.to_devices": ("cpu, cuda, or devices such as cuda:0,cuda:1", "cpu、cuda，或 cuda:0,cuda:1 这样的设备"),
    # why others have no effect
    "flags.for_running": ("a plan is the same without it; kt run takes it", "计划与它无关；kt run 接受该参数"),
    "flags.to_record": (
        "how often each expert was asked is written to a file when the server stops",
        "服务停止时把各专家被调用的次数写入文件",
    ),
    "flags.recorded": ("counts of experts are always kept", "专家计数始终记录"),
    "flags.one_attention": ("kt has one implementation for each kind of attention", "每种注意力 kt 只有一种实现"),
    "flags.one_kernel": (
        "kernels are chosen by the CPU, the GPU and the stored form",
        "kt 按 CPU、GPU 和存储格式选择内核",
    ),
    "flags.own_tokenizer": ("the tokenizer in the model's folder is used", "使用模型目录中的分词器"),
    "flags.no_code": ("code that comes with a model is never run", "kt 从不运行模型附带的代码"),
    "flags.always_mixed": ("prompts and answers always share steps", "提示与回答始终共用步骤"),
    "flags.always_cached": (
        "prefixes are always kept while there is room; answers are the same",
        "只要有空间就保留前缀；回答不变",
    ),
    "flags.no_fusion": ("shared experts are never counted among the routed ones", "共享专家从不并入路由专家"),
    "flags.links": ("copies between GPUs take what the driver offers", "kt 按驱动提供的方式在 GPU 间复制"),
    "flags.graphs": (
        "which steps are captured follows from the plan; answers are the same",
        "捕获哪些步骤由计划决定；回答不变",
    ),
    "flags.stored_form": (
        "weights stay as they are stored, and are read from safetensors or GGUF",
        "权重保持存储格式，从 safetensors 或 GGUF 读取",
    ),
    "flags.text_alone": ("text alone is served", "kt 只提供文本服务"),
    "flags.log": ("kt's log is a file, and /metrics is always there", "kt 的日志写入文件，/metrics 始终可用"),
    "flags.waits": ("no warm-up is waited for, and no slow step is ended", "kt 不做预热等待，也不终止较慢的步骤"),
    "flags.windows": ("layers with a window keep no more than it", "带窗口的层只保留窗口内的内容"),
    "flags.seed": ("a request has a seed of its own", "每个请求有自己的随机种子"),
    "flags.speculative": ("kt does not guess ahead; answers are the same", "kt 不做推测解码；回答不变"),
    # why some are refused
    "flags.lora": (
        "adapters of any rank are served beside the model, as many as memory holds",
        "任意秩的适配器都可与模型一起提供，数量只受内存限制",
    ),
    "flags.lora_folder": (
        "give the adapter as --lora NAME=FOLDER (kt sft export turns a pair of files into such a folder)",
        "请用 --lora 名称=文件夹 给出适配器（kt sft export 可把一对文件转成这样的文件夹）",
    ),
    "flags.one_machine": (
        "one server runs one copy of the model on one machine",
        "一个服务器只在一台机器上运行一份模型",
    ),
    # the page
    "flags.page_title": ("Flags of SGLang and KTransformers", "SGLang 与 KTransformers 的参数"),
    "flags.page_intro": (
        "`kt run` and `kt plan` take these flags beside their own options ([cli.md](cli.md)), under the same names and with the same "
        "meaning, and `kt plan --from 'COMMAND'` takes a whole command that starts such a server. A flag is used, ignored with a "
        "note because leaving it out changes no answer, or refused because it would. One that is in neither list is refused with the "
        "nearest names. This page is generated from the table in `kt_core/flags.py`.",
        "`kt run` 和 `kt plan` 除自身选项（[cli.md](cli.md)）外也接受这些参数，名称和含义相同；`kt plan --from 'COMMAND'` 接受启动此类服务器的整条命令。"
        "参数或被使用，或因不影响回答而忽略并提示，或因会影响回答而拒绝。两表都没有的参数会被拒绝并给出相近名称。本页由 `kt_core/flags.py` 中的表生成。",
    ),
    "flags.page_kt": ("Of KTransformers", "KTransformers 的参数"),
    "flags.page_server": ("Of SGLang", "SGLang 的参数"),
    "flags.page_own": ("Of kt alone", "kt 独有的参数"),
    "flags.column_flag": ("Flag", "参数"),
    "flags.column_use": ("Here", "处理"),
    "flags.column_becomes": ("Becomes", "对应"),
    "flags.column_why": ("What it does", "说明"),
    "flags.used": ("used", "使用"),
    "flags.ignored": ("ignored", "忽略"),
    "flags.refused_word": ("refused", "拒绝"),
    "flags.the_model": ("NAME", "NAME"),
    "flags.decision": ("decision `{name}`", "决定 `{name}`"),
}

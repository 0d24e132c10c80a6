"""Messages of `kt microbench`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "microbench.help": (
        "Measure this machine's ceilings and how near the kernels come to them",
        "测量本机的性能上限，以及内核与上限的差距",
    ),
    "microbench.examples": (
        "kt microbench ceilings\nkt microbench moe --shape deepseek-v3 --formats Q4_K --tokens 1,512\n"
        "kt microbench moe --hidden 4096 --intermediate 1536 --experts 64 --top-k 8 --check\nkt microbench linear --vs torch",
        "kt microbench ceilings\nkt microbench moe --shape deepseek-v3 --formats Q4_K --tokens 1,512\n"
        "kt microbench moe --hidden 4096 --intermediate 1536 --experts 64 --top-k 8 --check\nkt microbench linear --vs torch",
    ),
    "microbench.ceilings_help": (
        "Measure memory, arithmetic units and GPU links, and keep the result as the machine's profile\n"
        "Plans predict speed from it. Run it on an idle machine.",
        "测量内存、运算单元与 GPU 链路，并保存为本机档案\n计划据此预测速度。请在空闲的机器上运行。",
    ),
    "microbench.moe_help": (
        "Measure a layer of routed experts\n"
        "Weights are random and so many that caches cannot hold them; tokens are spread evenly over the experts. A row shows a call's "
        "time, the rate at which weights are read, arithmetic done, and the share of what the memory and the units allowed just then.",
        "测量一层路由专家\n权重随机且数量超过缓存容量；token 均匀分配给各专家。每行给出一次调用的时间、读取权重的速率、运算速率，"
        "以及占当时内存与运算单元上限的比例。",
    ),
    "microbench.linear_help": (
        "Measure a linear layer\n"
        "By model name it is attention's output projection. For the columns see: kt microbench moe --help",
        "测量一个线性层\n以模型名指定时，为注意力的输出投影。各列含义见：kt microbench moe --help",
    ),
    "microbench.attention_help": (
        "Measure attention over paged caches\n"
        "One sequence; its last tokens ask. One token is decoding, as many as keys a whole prompt. For the columns see: kt microbench moe --help",
        "测量分页缓存上的注意力\n一个序列，由其最后若干 token 查询；一个 token 即解码，与键数相同即整段提示。各列含义见：kt microbench moe --help",
    ),
    "microbench.keys": (
        "Keys of the sequence, separated by commas; default: 4096",
        "序列的键数，以逗号分隔；默认为 4096",
    ),
    "microbench.cache_formats": (
        "Formats of the cache, separated by commas: BF16, F32; default: BF16",
        "缓存的格式，以逗号分隔：BF16、F32；默认为 BF16",
    ),
    "microbench.queries": (
        "Numbers of tokens that ask, separated by commas; default: 1,512",
        "查询的 token 数，以逗号分隔；默认为 1,512",
    ),
    "microbench.column_keys": ("KEYS", "键"),
    "microbench.title_attention": (
        "{name}: {heads} query heads, {kv_heads} kv heads, keys of {key_size}, values of {value_size}",
        "{name}：{heads} 个查询头，{kv_heads} 个键值头，键 {key_size}，值 {value_size}",
    ),
    "microbench.shape": (
        "Model whose layer sizes are taken; default: qwen3-30b-a3b",
        "采用哪个模型的层尺寸；默认为 qwen3-30b-a3b",
    ),
    "microbench.hidden": ("Hidden size; default: the model's", "隐藏层大小；默认与模型相同"),
    "microbench.intermediate": ("Width of an expert; default: the model's", "专家宽度；默认与模型相同"),
    "microbench.experts": ("Number of experts; default: the model's", "专家数量；默认与模型相同"),
    "microbench.top_k": ("Experts of a token; default: the model's", "每个 token 的专家数；默认与模型相同"),
    "microbench.inputs": ("Inputs of the layer; default: the model's", "层的输入数；默认与模型相同"),
    "microbench.outputs": ("Outputs of the layer; default: the model's", "层的输出数；默认与模型相同"),
    "microbench.formats": (
        "Weight formats, separated by commas, or all; default: BF16,Q8_0,Q4_K",
        "权重格式，以逗号分隔，或 all；默认为 BF16,Q8_0,Q4_K",
    ),
    "microbench.tokens": (
        "Numbers of tokens in a call, separated by commas; default: 1,16,512",
        "每次调用的 token 数，以逗号分隔；默认为 1,16,512",
    ),
    "microbench.threads": (
        "Numbers of threads, separated by commas; default: as kt run takes",
        "线程数，以逗号分隔；默认与 kt run 相同",
    ),
    "microbench.ceilings_threads": (
        "Numbers of threads, separated by commas; default: 1, 2, 4 and so on up to what kt run takes",
        "线程数，以逗号分隔；默认为 1、2、4 等，直至 kt run 所用的线程数",
    ),
    "microbench.layers": (
        "Layers used in turn; default: as many as caches cannot hold",
        "轮流使用的层数；默认使权重超过缓存容量",
    ),
    "microbench.tier": ("Kernel tiers, separated by commas; default: the best", "内核级别，以逗号分隔；默认为最佳"),
    "microbench.repeats": ("Samples of each row; default: 7", "每行的采样次数；默认为 7"),
    "microbench.vs": (
        "Whose kernels to time on the same input as well; default: nobody's",
        "同时用谁的内核测量相同输入；默认不比较",
    ),
    "microbench.check": (
        "Compare results with a float64 reference, and end with code 1 if one is off by more than it may",
        "与 float64 参考结果比较；若误差超出允许范围则退出码为 1",
    ),
    "microbench.a_list": (
        "whole numbers from 1, of at most 18 digits, separated by commas",
        "不小于 1 且不超过 18 位的整数，以逗号分隔",
    ),
    "microbench.multiple": (
        "{option} cannot be {count}.\nWidths of weights are multiples of {step}: kernels read blocks of that many.\nFor example: {option} {near}",
        "{option} 不能为 {count}。\n权重的宽度须为 {step} 的倍数：内核按此大小的块读取。\n例如：{option} {near}",
    ),
    "microbench.threads_many": (
        "{threads} threads are more than kt can start.\nThe limit is {most}.\nName fewer.",
        "{threads} 个线程超出 kt 可启动的数量。\n上限为 {most}。\n请减少。",
    ),
    "microbench.start": ("Starting", "启动"),
    "microbench.interrupted": ("Interrupted; these rows were measured before", "已中断；以下为此前测得的结果"),
    "microbench.title_moe": (
        "{name}: hidden {hidden}, {experts} experts of width {intermediate}, {top_k} a token",
        "{name}：隐藏层 {hidden}，{experts} 个专家，宽度 {intermediate}，每个 token 使用 {top_k} 个",
    ),
    "microbench.title_linear": (
        "{name}: {hidden} inputs, {intermediate} outputs",
        "{name}：输入 {hidden}，输出 {intermediate}",
    ),
    "microbench.off": (
        "A kernel's results are off by more than they may be.\n{rows}\nReport it with the output of kt doctor; until then use another tier.",
        "内核结果的误差超出允许范围。\n{rows}\n请连同 kt doctor 的输出一并报告；在此之前请使用其他级别。",
    ),
    "microbench.off_row": (
        "{format} on {tier}, {tokens} tokens: error {error}, allowed {bound}",
        "{format}，级别 {tier}，{tokens} 个 token：误差 {error}，允许 {bound}",
    ),
    "microbench.stored": ("The machine's profile is in {path}", "本机档案保存在 {path}"),
    "microbench.not_stored": ("The profile was not written: not everything was measured", "未全部测完，没有写入档案"),
    "microbench.ended": (
        "The process that measures ended with code {code}.\n{reason}\nLog: {log}",
        "测量进程已退出，退出码 {code}。\n{reason}\n日志：{log}",
    ),
    "microbench.killed": (
        "The process that measures was ended by signal {signal}.\n{reason}\nLog: {log}",
        "测量进程被信号 {signal} 终止。\n{reason}\n日志：{log}",
    ),
    "microbench.ceiling_of": ("{limit} {rate}", "{limit} {rate}"),
    "microbench.limit_memory": ("memory", "内存"),
    "microbench.limit_compute": ("units", "运算单元"),
    "microbench.column_format": ("FORMAT", "格式"),
    "microbench.column_tier": ("TIER", "级别"),
    "microbench.column_path": ("PATH", "路径"),
    "microbench.column_threads": ("THREADS", "线程"),
    "microbench.column_tokens": ("TOKENS", "TOKEN"),
    "microbench.column_median": ("MEDIAN", "中位数"),
    "microbench.column_spread": ("SPREAD", "范围"),
    "microbench.column_gbps": ("GB/s", "GB/s"),
    "microbench.column_tflops": ("TFLOP/s", "TFLOP/s"),
    "microbench.column_share": ("SHARE", "比例"),
    "microbench.column_ceiling": ("OF CEILING", "上限"),
    "microbench.column_error": ("ERROR", "误差"),
    "microbench.column_bound": ("ALLOWED", "允许"),
    "microbench.column_what": ("WHAT", "项目"),
    "microbench.what_read": ("memory read", "内存读取"),
    "microbench.what_f32": ("float32 multiply-add", "float32 乘加"),
    "microbench.what_bf16": ("bfloat16 products", "bfloat16 乘积"),
    "microbench.what_int8": ("int8 products", "int8 乘积"),
    "microbench.what_tile_bf16": ("bfloat16 tiles", "bfloat16 矩阵块"),
    "microbench.what_tile_int8": ("int8 tiles", "int8 矩阵块"),
    "microbench.link_to": ("copy to {device}", "复制到 {device}"),
    "microbench.link_from": ("copy from {device}", "从 {device} 复制"),
}

"""Messages of the plan room: reasons of decisions, and refusals."""

MESSAGES: dict[str, tuple[str, str]] = {
    "plan.smt_one": (
        "{reason}; each has a core of its own, by measurement",
        "{reason}；实测各占一核",
    ),
    "plan.smt_two": (
        "{reason}; by measurement two of them share a core, which the virtual machine hides",
        "{reason}；实测每两个共用一核，虚拟机未显示",
    ),
    "plan.smt_unknown": (
        "{reason}; whether two of them share a core is unknown: a virtual machine shows one thread a core, and "
        "kt microbench ceilings measures it",
        "{reason}；是否两个共用一核未知：虚拟机显示每核一个线程，可用 kt microbench ceilings 测量",
    ),
    "plan.help": (
        "Show how a model would run, before any download\n"
        "Tells what kt would decide and why, the memory that it takes and about how fast it is, on this machine or on another "
        "one. A model that does not fit ends with exit code 3 and what would fit.",
        "在下载之前查看模型将如何运行\n显示 kt 会作出的决定及理由、所需内存和大致速度，可用于本机或其他机器。放不下时退出码为 3，并给出可行的方案。",
    ),
    "plan.examples": (
        "kt plan qwen3-30b-a3b\nkt plan r1 --context 32768\n"
        "kt plan r1 --simulate cpu=xeon-6454s:2,ram=1TiB,gpu=rtx-4090,disk=2TiB\nkt plan OWNER/MODEL:Q4_K_M --json",
        "kt plan qwen3-30b-a3b\nkt plan r1 --context 32768\n"
        "kt plan r1 --simulate cpu=xeon-6454s:2,ram=1TiB,gpu=rtx-4090,disk=2TiB\nkt plan OWNER/MODEL:Q4_K_M --json",
    ),
    "plan.simulate": (
        "Plan for another machine: cpu=NAME:SOCKETS,ram=SIZE,gpu=NAME:COUNT,disk=SIZE; default: all as on this machine",
        "为另一台机器制定计划：cpu=NAME:SOCKETS,ram=SIZE,gpu=NAME:COUNT,disk=SIZE；默认均按本机",
    ),
    "plan.title": ("Plan for {name} on {cpu} with {memory}", "{name} 在 {cpu}（内存 {memory}）上的计划"),
    "plan.model_from": ("Model: {source}.", "模型：{source}。"),
    "plan.download_size": ("To download: {size}; free on the disk: {free}.", "需下载：{size}；磁盘空闲：{free}。"),
    "plan.no_gpu_yet": (
        "This version does not compute on {gpus}: the plan leaves them out.",
        "此版本不支持在 {gpus} 上计算：计划未使用。",
    ),
    "plan.speed_basis": ("Speed: {reason}.", "速度：{reason}。"),
    "plan.speed_measured": (
        "by the rates measured on this machine; a longer context is slower",
        "依据本机实测速率；上下文越长越慢",
    ),
    "plan.speed_expected": (
        "not measured; {cpu} with all memory channels filled should read {rate} GB/s, and be slower with a longer context. "
        "On that machine, kt microbench ceilings measures it",
        "未经实测；{cpu} 插满内存通道时读取应达 {rate} GB/s，上下文越长越慢。可在该机器上用 kt microbench ceilings 实测",
    ),
    "plan.speed_unknown": (
        "not predicted, since nothing is measured here and kt has no figures of this CPU; kt microbench ceilings measures it",
        "无法预测：本机未实测，kt 也没有该 CPU 的数据；可用 kt microbench ceilings 实测",
    ),
    "plan.speed_scalar": (
        "not predicted, since kt has only portable kernels for {architecture}, which do not reach the memory's rate",
        "无法预测：kt 对 {architecture} 只有通用内核，达不到内存速率",
    ),
    "plan.fit_memory": (
        "Model {name} does not fit in memory: {short} are missing.\n"
        "It takes at least {needed} ({weights} of it weights); {available} are available of {limit}.\n{nearest}",
        "内存放不下模型 {name}：缺少 {short}。\n至少需要 {needed}（其中权重 {weights}）；可用 {available}，上限为{limit}。\n{nearest}",
    ),
    "plan.fit_disk": (
        "Model {name} does not fit on the disk: {short} are missing.\nIts files take {needed}; {free} are free.\n"
        "Free as much, or put models on another disk: kt config set paths.models DIR",
        "磁盘放不下模型 {name}：缺少 {short}。\n文件需要 {needed}；空闲 {free}。\n"
        "请腾出空间，或把模型放到其他磁盘：kt config set paths.models DIR",
    ),
    "plan.fit_untrained": (
        "Model {name} was not made for a context of {context} tokens.\nIt was trained for {trained}; beyond that its answers decay.\n"
        "Use --context {trained}, or leave it out.",
        "模型 {name} 不支持 {context} 个 token 的上下文。\n它只训练到 {trained}；超出后回答质量会下降。\n请使用 --context {trained}，或不指定。",
    ),
    "plan.nearest_context": ("It fits with --context {context}.", "使用 --context {context} 可放下。"),
    "plan.nearest_form": ("In another format it fits: {names}.", "换一种格式可放下：{names}。"),
    "plan.nearest_no_form": (
        "No other published format that kt has the shapes of fits.",
        "kt 知道规模的其他发布格式也都放不下。",
    ),
    "plan.nearest_smaller": ("Take a smaller model or quantization.", "请换更小的模型或量化。"),
    "plan.nearest_memory": ("As it is, it takes a machine with {size}.", "保持原样需要内存为 {size} 的机器。"),
    "plan.download": (
        "{name} was not downloaded: it cannot fit in memory.\n"
        "Its weights take {needed}; this machine has {total}.\n"
        "Choose a smaller model, or download it all the same: kt model pull {name}",
        "未下载 {name}：内存放不下。\n其权重需要 {needed}；本机内存为 {total}。\n请选择更小的模型，或仍要下载：kt model pull {name}",
    ),
    "plan.method_renamed": (
        "chosen by the user as {old}, which is its older name",
        "由用户以旧名称 {old} 指定",
    ),
    "plan.method_stored": ("as the weights are stored: nothing is converted", "按权重的存储格式：不作转换"),
    "plan.unknown_method": (
        "There is no way to hold experts called {name}.\nKnown: {known}.\nUse one of these, or leave --kt-method out.",
        "没有名为 {name} 的专家存储方式。\n可选：{known}。\n请使用其中之一，或不指定 --kt-method。",
    ),
    "plan.other_method": (
        "The weights are not stored for {name}.\nThey are stored for {stored}, and kt computes with them as they are.\n"
        "Leave --kt-method out, or take a folder whose weights were converted.",
        "权重不是为 {name} 存储的。\n其存储方式为 {stored}，kt 按原样计算。\n请不指定 --kt-method，或换用已转换权重的目录。",
    ),
    "plan.bad_nodes": (
        "There is nothing to compute on in the NUMA nodes {nodes}.\nNodes with CPUs that the process may use: {known}.\nChoose from these.",
        "NUMA 节点 {nodes} 上没有可用的 CPU。\n含有进程可用 CPU 的节点：{known}。\n请从中选择。",
    ),
    "plan.pools_nodes": (
        "{pools} pools do not go with the NUMA nodes {nodes}.\nEach node has a pool.\nGive as many nodes as pools, or leave one of the two out.",
        "{pools} 个线程池与 NUMA 节点 {nodes} 不符。\n每个节点一个线程池。\n请使二者个数相同，或只指定其一。",
    ),
    "plan.default_rules": ("the rules that come with kt", "kt 自带的规则"),
    "plan.context_small": (
        "A context of {context} tokens is too small.\nA question and its answer need at least {smallest}.\nUse a larger --context, or leave it out.",
        "{context} 个 token 的上下文太小。\n一问一答至少需要 {smallest} 个。\n请使用更大的 --context，或不指定。",
    ),
    "plan.chosen": ("chosen by the user", "由用户指定"),
    "plan.forced": ("go on although the plan may not fit", "即使可能放不下也继续"),
    "plan.tier_best": (
        "the best kernels that this CPU runs; by its flags {tier}",
        "本机 CPU 能运行的最佳内核；按指令集应为 {tier}",
    ),
    "plan.tier_scalar": (
        "portable kernels: there are none written for {architecture}",
        "通用内核：没有为 {architecture} 专门编写的内核",
    ),
    "plan.threads_above_cores": (
        "chosen by the user; more than the {cores} physical cores, {best} is likely faster",
        "由用户指定；多于 {cores} 个物理核，{best} 可能更快",
    ),
    "plan.threads_above_allowed": (
        "chosen by the user; more than the {allowed} CPUs that the process may use, {best} is likely faster",
        "由用户指定；多于进程可用的 {allowed} 个 CPU，{best} 可能更快",
    ),
    "plan.threads_many": (
        "{threads} threads are too many.\nkt takes {most} at most; {best} would be best on this machine.\nGive fewer, or leave --threads out.",
        "{threads} 个线程过多。\nkt 最多接受 {most} 个；本机最佳为 {best} 个。\n请减少线程数，或不指定 --threads。",
    ),
    "plan.pinned": ("one thread on each usable CPU", "每个可用 CPU 固定一个线程"),
    "plan.unpinned": (
        "not pinned: the threads take a part of the CPUs, which other processes may share",
        "不固定：线程只用部分 CPU，其他进程可能共用",
    ),
    "plan.unpinned_many": (
        "not pinned: there are more threads than the {allowed} usable CPUs",
        "不固定：线程数多于 {allowed} 个可用 CPU",
    ),
    "plan.one_node": ("one pool: {nodes} NUMA node has CPUs to use", "一个线程池：有 {nodes} 个 NUMA 节点的 CPU 可用"),
    "plan.few_threads": (
        "one pool: there are not enough threads for each of {nodes} NUMA nodes",
        "一个线程池：线程数不足以分给 {nodes} 个 NUMA 节点",
    ),
    "plan.nodes": (
        "one pool for each of {nodes} NUMA nodes, with its part of the weights in its memory",
        "{nodes} 个 NUMA 节点各一个线程池，各自的权重放在本节点内存中",
    ),
    "plan.nodes_small": (
        "{reason}; nodes {nodes} are smaller than their part of {part}: the rest lies in others, and is read more slowly",
        "{reason}；节点 {nodes} 小于其应分担的 {part}：其余部分放在别的节点，读取较慢",
    ),
    "plan.pools_many": (
        "{pools} pools are too many.\nEach needs a thread, and kt takes {most} at most here.\nGive fewer, or more threads.",
        "{pools} 个线程池过多。\n每个至少需要一个线程，此处最多 {most} 个。\n请减少线程池，或增加线程。",
    ),
    "plan.context_trained": ("the model's own context, which fits", "模型自身的上下文长度，内存足够"),
    "plan.memory_unknown": (
        "the model's own context; not checked, because the memory size is unknown",
        "模型自身的上下文长度；内存大小未知，未作检查",
    ),
    "plan.context_fits": (
        "the longest that fits: {trained} tokens would take {needed}, {available} are available",
        "内存允许的最大值：{trained} 个 token 需要 {needed}，可用 {available}",
    ),
    "plan.kv_float32": (
        "the weights are float32 or float16, whose kernels round nothing; bfloat16 would take half the memory",
        "权重为 float32 或 float16，其内核不作舍入；bfloat16 可省一半内存",
    ),
    "plan.kv_bfloat16": (
        "cached keys and values are rounded to 8 bits of precision; half the memory and reading of float32",
        "缓存的键和值舍入到 8 位精度；内存与读取量为 float32 的一半",
    ),
    "plan.kv_dtype_unknown": (
        "Keys and values cannot be cached as {dtype}.\nKnown: {known}.\nUse one of these, or leave it out.",
        "键和值不能以 {dtype} 缓存。\n可选：{known}。\n请使用其中之一，或不指定。",
    ),
    "plan.kv_dtype_gpu": (
        "Keys and values as {dtype} need a GPU.\nNone is used: {reason}.\nUse --kv-dtype bfloat16, or leave it out.",
        "以 {dtype} 缓存键和值需要 GPU。\n未使用 GPU：{reason}。\n请使用 --kv-dtype bfloat16，或不指定。",
    ),
    "plan.max_running": (
        "{each} for each thread, at most {most}: more would only make everyone wait longer",
        "每个线程 {each} 个，最多 {most} 个：再多只会让所有请求等得更久",
    ),
    "plan.max_running_many": (
        "{count} requests at the same time are too many.\nA step has {most} tokens, and each request one of them.\nGive fewer, or leave --max-running out.",
        "同时运行 {count} 个请求过多。\n一步有 {most} 个 token，每个请求占一个。\n请减少，或不指定 --max-running。",
    ),
    "plan.cache_one": (
        "{size}, {tokens} tokens: one conversation of the whole context, or several shorter ones",
        "{size}，{tokens} 个 token：一个用满上下文的对话，或多个较短的对话",
    ),
    "plan.cache_half": (
        "{size}, {tokens} tokens: half of the memory that the model leaves free",
        "{size}，{tokens} 个 token：模型之外空闲内存的一半",
    ),
    "plan.cache_all": (
        "{size}, {tokens} tokens: all {sequences} conversations of the whole context",
        "{size}，{tokens} 个 token：{sequences} 个对话都可用满上下文",
    ),
    "plan.prefix_disk": (
        "{size} of prefixes on disk, which outlive a restart: {times} times the cache, at most a {share}th of what is free",
        "磁盘上保存 {size} 的前缀，重启后仍可用：缓存的 {times} 倍，且不超过空闲空间的 1/{share}",
    ),
    "plan.prefix_disk_off": (
        "off: {free} are free on a disk for it, and it takes {least} to be worth the writing",
        "关闭：可用的磁盘空闲空间为 {free}，至少有 {least} 才值得写入",
    ),
    "plan.prefix_host": (
        "{size} of prefixes in memory, for what the devices give up: {times} times their cache, at most a {share}th of what is left",
        "内存中保存 {size} 的前缀，供设备放弃的内容再次使用：设备缓存的 {times} 倍，且不超过剩余内存的 1/{share}",
    ),
    "plan.prefix_disk_bad": (
        "{option} {value} is no size.\nKnown: off, or a size such as 20GiB or 500MB.\nGive one of these, or leave it out.",
        "{option} {value} 不是大小。\n可用：off，或如 20GiB、500MB 的大小。\n请使用其中之一，或不指定。",
    ),
    "plan.float32": (
        "numbers between kernels stay float32: nothing is rounded between them",
        "内核之间使用 float32：中间结果不舍入",
    ),
    "plan.weights_too_big": (
        "Model {name} does not fit in memory.\n"
        "It takes at least {needed} ({weights} of it weights), {available} are available; no context is small enough.\n"
        "Take a smaller model or quantization, or go on at your own risk with --force.",
        "内存放不下模型 {name}。\n至少需要 {needed}（其中权重 {weights}），可用 {available}；减小上下文也不够。\n"
        "请换更小的模型或量化，或自担风险使用 --force。",
    ),
    "plan.context_too_big": (
        "Model {name} does not fit in memory with a context of {context} tokens.\n"
        "It takes {needed} ({weights} of it weights), {available} are available.\n"
        "The largest context that fits: --context {fits}. To go on at your own risk: --force",
        "上下文为 {context} 个 token 时，内存放不下模型 {name}。\n需要 {needed}（其中权重 {weights}），可用 {available}。\n"
        "可用的最大上下文：--context {fits}。自担风险继续：--force",
    ),
    "plan.context_untrained": (
        "Model {name} was not made for a context of {context} tokens.\nIt was trained for {trained}; beyond that its answers decay.\n"
        "Use --context {trained}, or go on with --force.",
        "模型 {name} 不支持 {context} 个 token 的上下文。\n它只训练到 {trained}；超出后回答质量会下降。\n"
        "请使用 --context {trained}，或用 --force 继续。",
    ),
    "plan.formats": (
        "Model {name} is stored in formats that kt has no kernels for.\n{tensors}\n"
        "Take a file whose tensors are all in: {supported}.",
        "模型 {name} 的部分权重格式没有对应的内核。\n{tensors}\n请使用所有张量均为以下格式的文件：{supported}。",
    ),
    "plan.unknown_tier": (
        "There is no kernel tier called {tier}.\nKnown: {known}.\nLeave it out to use the best one.",
        "没有名为 {tier} 的内核级别。\n可选：{known}。\n不指定则使用最佳级别。",
    ),
    "plan.tier_missing": (
        "This CPU cannot run the kernel tier {tier}.\nIt can run: {runnable}.\nLeave it out to use the best one.",
        "本机 CPU 不能运行内核级别 {tier}。\n可以运行：{runnable}。\n不指定则使用最佳级别。",
    ),
    "plan.bad_cpus": (
        "The process may not run on all of the CPUs {cpus}.\nIt may use: {allowed}.\nChoose from these.",
        "进程不能使用所指定的全部 CPU：{cpus}。\n可以使用：{allowed}。\n请从中选择。",
    ),
    "plan.dtype": (
        "kt cannot compute in {dtype} on this CPU path.\nKnown: {known}.\nLeave it out.",
        "此 CPU 路径不支持 {dtype}。\n可选：{known}。\n请不要指定。",
    ),
    "plan.not_positive": (
        "{name} cannot be {value}.\nIt is a whole number from 1.\nLeave it out to let kt decide.",
        "{name} 不能为 {value}。\n应为不小于 1 的整数。\n不指定则由 kt 决定。",
    ),
    "plan.unknown_override": (
        "There is nothing called {names} to choose in a plan.\nKnown: {known}.\nUse one of these.",
        "计划中没有 {names} 可供选择。\n可选：{known}。\n请使用其中之一。",
    ),
}

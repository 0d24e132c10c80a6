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
        "注意力缓存不能以 {name} 存放。\n可用：{known}。\n请从中选择。",
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
}

"""Messages of quantising."""

MESSAGES: dict[str, tuple[str, str]] = {
    "quantise.method": (
        "There is no method {name}.\nKnown: {known}.\nChoose one with --method.",
        "没有名为 {name} 的方法。\n已知方法：{known}。\n请用 --method 选择其一。",
    ),
    "quantise.override": (
        "{text} is not an override of this kind of output.\nIt has the form PATTERN=METHOD, for int4 also PATTERN=int4:GROUP, "
        "with one of: {known}.\nExample: --override 'layers\\.0\\.=keep'",
        "{text} 不是此类输出的覆盖规则。\n格式为 PATTERN=METHOD，int4 还可写作 PATTERN=int4:GROUP，方法为：{known}。\n"
        "示例：--override 'layers\\.0\\.=keep'",
    ),
    "quantise.undecodable": (
        "tensor {tensor} has the dtype {dtype}, which kt cannot decode",
        "张量 {tensor} 的数据类型为 {dtype}，kt 无法解码",
    ),
    "quantise.integers": (
        "tensor {tensor} holds integers ({dtype}) where the model has real numbers, and config.json describes no quantisation of it",
        "张量 {tensor} 存储的是整数（{dtype}），而模型此处为实数，config.json 也未说明其量化方式",
    ),
    "quantise.unloadable": (
        "kt has no model for {model}: it cannot check the weights, nor run what is made.\n{reason}",
        "kt 没有 {model} 对应的模型：无法核对权重，也无法运行生成的结果。\n{reason}",
    ),
    "quantise.pattern": (
        "{text} is not a regular expression.\n{reason}\nExample: --override 'layers\\.0\\.=keep'",
        "{text} 不是正则表达式。\n{reason}\n示例：--override 'layers\\.0\\.=keep'",
    ),
    "quantise.idle": (
        "No weight that can be changed is found by the rule {patterns}.\nRules name weights as the output does, {example} for one; "
        "embeddings of folders, norms and routers stay as they are.\nCorrect or leave out the --override.",
        "规则 {patterns} 未匹配到任何可更改的权重。\n规则使用输出中的权重名，例如 {example}；文件夹的词嵌入、归一化与路由器保持不变。\n"
        "请更正或去掉该 --override。",
    ),
    "quantise.busy": (
        "Another process is making {out}.\nTwo of them would write over each other.\nWait for it, or choose another --out.",
        "另一个进程正在生成 {out}。\n两者会相互覆盖。\n请等待其完成，或用 --out 选择其他位置。",
    ),
    "quantise.not_ours": (
        "{folder} is no unfinished output of kt quant.\nIt is a link, or has folders in it, and would be emptied.\n"
        "Move it away, or choose another --out.",
        "{folder} 不是 kt quant 未完成的输出。\n它是链接或其中含有文件夹，继续会将其清空。\n请将其移走，或用 --out 选择其他位置。",
    ),
    "quantise.exists": (
        "{out} is there already.\nAn earlier output is never overwritten.\nChoose another --out, or delete the folder.",
        "{out} 已存在。\n不会覆盖先前的输出。\n请用 --out 选择其他位置，或删除该文件夹。",
    ),
    "quantise.nothing": (
        "Nothing in {model} would be changed by {method}.\nNo weight of the kind that it takes is there.\n"
        "Choose another --method or --only.",
        "{method} 不会改变 {model} 中的任何内容。\n其中没有该方法所处理的权重。\n请选择其他 --method 或 --only。",
    ),
    "quantise.short_text": (
        "The text {path} is too short.\nIt has {count} letters; at least {least} are needed to tell columns apart.\nGive a text file of some thousand words.",
        "文本 {path} 太短。\n其中有 {count} 个字符；要区分各列至少需要 {least} 个。\n请提供约数千词的文本文件。",
    ),
    "quantise.uniform_text": (
        "The text {path} says too little.\nIt has {count} different letters; any text of a language has {least} and more.\nGive a text file of some thousand words.",
        "文本 {path} 的内容太少。\n其中只有 {count} 种字符；任何语言的文本都有 {least} 种以上。\n请提供约数千词的文本文件。",
    ),
    "quantise.no_text": (
        "The text has no tokens for {model}.\nImportance is collected by running a text through the model.\n"
        "Give a text file of some thousand words.",
        "对 {model} 而言该文本没有任何 token。\n重要性需让模型运行一段文本来收集。\n请提供约数千词的文本文件。",
    ),
    "quantise.no_tensor": (
        "{model} cannot become a GGUF file.\nIt has no {tensor}, which files of this family have in every layer.\n"
        "Choose a method for Hugging Face folders, such as --method int4.",
        "{model} 无法转换为 GGUF 文件。\n缺少 {tensor}，而该系列的文件每层都有。\n请选择用于 Hugging Face 文件夹的方法，如 --method int4。",
    ),
    "quantise.tokenizer": (
        "The tokenizer {path} has no form in a GGUF file that kt writes.\nIts kind is {kind}; byte-level BPE is written.\n"
        "Choose a method for Hugging Face folders, such as --method int4.",
        "分词器 {path} 在 kt 写出的 GGUF 文件中没有对应形式。\n其类型为 {kind}；可写出的是字节级 BPE。\n"
        "请选择用于 Hugging Face 文件夹的方法，如 --method int4。",
    ),
    "quantise.splitting": (
        "The tokenizer {path} has no form in a GGUF file that kt writes.\nIt cuts texts in a way that has no name there. "
        "Known: {known}.\nChoose a method for Hugging Face folders, such as --method int4.",
        "分词器 {path} 在 kt 写出的 GGUF 文件中没有对应形式。\n其文本切分方式没有名称。已知：{known}。\n"
        "请选择用于 Hugging Face 文件夹的方法，如 --method int4。",
    ),
    "quantise.disk": (
        "The output cannot be written.\n{folder}: {reason}.\nMake room or choose another --out; layers that are finished stay, and the same command goes on with them.",
        "无法写入输出。\n{folder}：{reason}。\n请腾出空间或选择其他 --out；已完成的层会保留，再次运行同一命令会继续。",
    ),
    "quantise.no_place": (
        "{out} cannot be made.\n{folder}, which it is written into first: {reason}.\nChoose another --out.",
        "无法生成 {out}。\n先写入的 {folder}：{reason}。\n请用 --out 选择其他位置。",
    ),
    "quantise.disk_full": (
        "The output does not fit on the disk.\nIt needs {needed} more; {folder} has {free} free.\nMake room or choose another --out.",
        "磁盘空间不足。\n还需要 {needed}；{folder} 剩余 {free}。\n请腾出空间或选择其他 --out。",
    ),
    "quantise.not_finite": (
        "The weight {tensor} cannot be quantised.\nIt has numbers that are not finite.\nDownload the model again.",
        "无法量化权重 {tensor}。\n其中含有非有限数。\n请重新下载模型。",
    ),
    "quantise.too_large": (
        "The weight {tensor} cannot become {method}.\nIts largest number is {largest}; the scales of {method} reach {most}.\n"
        "Choose another --method, or another form for this weight with --override.",
        "权重 {tensor} 无法转换为 {method}。\n其最大的数为 {largest}；{method} 的缩放系数最多到 {most}。\n"
        "请选择其他 --method，或用 --override 为该权重选择其他形式。",
    ),
    "quantise.broken_package": (
        "Quantising cannot start: a package is missing or broken.\n{reason}\nNext: kt doctor",
        "无法开始量化：某个软件包缺失或损坏。\n{reason}\n下一步：kt doctor",
    ),
    "quantise.failed": (
        "Quantising failed.\n{reason}\nLayers that are finished stay; the same command goes on with them.",
        "量化失败。\n{reason}\n已完成的层会保留；再次运行同一命令会继续。",
    ),
    "quantise.stage": ("Writing", "写入"),
}

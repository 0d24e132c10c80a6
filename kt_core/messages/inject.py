"""Messages of the injection rules, the operators and the model loader."""

MESSAGES: dict[str, tuple[str, str]] = {
    "inject.no_file": (
        "The rule file {path} cannot be read.\n{reason}\nCheck the path given for the rules.",
        "无法读取规则文件 {path}。\n{reason}\n请检查规则文件的路径。",
    ),
    "inject.bad_yaml": (
        "{path} is not a rule file.\n{reason}\nCorrect the file; docs/rules.md shows the form.",
        "{path} 不是规则文件。\n{reason}\n请更正该文件；格式见 docs/rules.md。",
    ),
    "inject.bad_rules": (
        "The rule file {path} has errors; nothing was loaded.\n{problems}\nCorrect these lines; docs/rules.md shows the form.",
        "规则文件 {path} 有错误，未加载任何内容。\n{problems}\n请更正这些行；格式见 docs/rules.md。",
    ),
    "inject.rules_no_list": ("the file is not a list of rules", "该文件不是规则列表"),
    "inject.rule_no_mapping": (
        "a rule must be a mapping with 'match' and 'replace'",
        "规则必须是含有 'match' 和 'replace' 的映射",
    ),
    "inject.rule_no_match": ("'match' needs 'name' or 'class'", "'match' 需要 'name' 或 'class'"),
    "inject.rule_no_replace": ("'replace' is missing or not a mapping", "缺少 'replace'，或它不是映射"),
    "inject.rule_recursive": (
        "'recursive' is {value}, not true or false",
        "'recursive' 是 {value}，应为 true 或 false",
    ),
    "inject.rule_no_kwargs": ("'kwargs' is not a mapping", "'kwargs' 不是映射"),
    "inject.rule_no_module": ("{cls} is no torch.nn.Module", "{cls} 不是 torch.nn.Module"),
    "inject.rule_key": ("unknown key {name} in {what}; known: {known}", "{what} 中有未知的键 {name}；可用：{known}"),
    "inject.rule_twice": ("the key {name} stands there twice", "键 {name} 出现了两次"),
    "inject.rule_expression": ("'name' is not a regular expression: {reason}", "'name' 不是正则表达式：{reason}"),
    "inject.rule_path": ("{path} is not a dotted class path", "{path} 不是以点分隔的类路径"),
    "inject.rule_import": ("class {path} cannot be imported: {reason}", "无法导入类 {path}：{reason}"),
    "inject.rule_no_class": ("{path} is not a class", "{path} 不是类"),
    "inject.rule_argument": ("{cls} takes no argument {name}; known: {known}", "{cls} 没有参数 {name}；可用：{known}"),
    "inject.device": (
        "{module} cannot run on the device {device}.\nThe operator {operator} runs on: {known}.\nChange generate_device in the rule file.",
        "{module} 无法在设备 {device} 上运行。\n算子 {operator} 支持：{known}。\n请修改规则文件中的 generate_device。",
    ),
    "inject.own_forward": (
        "{cls} has a forward of its own",
        "{cls} 有自己的 forward",
    ),
    "inject.embedding": (
        "The token embedding {name} is stored as {format}.\nkt reads embeddings that have no scales beside them.\n"
        "Choose a version of the model whose embedding is not quantised, or a GGUF file.",
        "词嵌入 {name} 以 {format} 存储。\nkt 只支持不带独立缩放系数的词嵌入。\n请选择词嵌入未量化的模型版本或 GGUF 文件。",
    ),
    "inject.activation": (
        "{cls} has an activation without a kernel ({activation}; known: {known})",
        "{cls} 的激活函数没有对应的内核（{activation}；已支持：{known}）",
    ),
    "inject.experts_layout": (
        "{cls} is not in transformers' form of experts",
        "{cls} 不符合 transformers 的专家形式",
    ),
    "inject.experts_norm": (
        "{cls} has a norm behind each expert",
        "{cls} 在每个专家之后有归一化",
    ),
    "inject.experts_count": (
        "The checkpoint does not hold the experts that the model needs.\n"
        "At {module} it has {found}, the model needs {expected}.\n"
        "config.json and the weights do not belong together; get the model again: kt model pull NAME",
        "检查点中的专家与模型不符。\n{module} 处有 {found} 个，模型需要 {expected} 个。\n"
        "config.json 与权重不匹配；请重新获取模型：kt model pull NAME",
    ),
    "inject.kept": (
        "{count} module(s) of this model have no kernel in kt and run as transformers' own: slower, and {more} bigger.\n"
        "The first one is {module}: {reason}.\nThe log names all of them.",
        "该模型有 {count} 个模块在 kt 中没有内核，将由 transformers 自身计算：更慢，且多占 {more} 内存。\n"
        "第一个是 {module}：{reason}。\n日志中列出了全部模块。",
    ),
    "inject.context_reduced": (
        "The context is {fits} tokens instead of {context}: modules without a kernel take {more} more.\n"
        "{needed} would be needed, {available} are available.",
        "上下文为 {fits} 个 token，而非 {context} 个：没有内核的模块多占 {more} 内存。\n需要 {needed}，可用 {available}。",
    ),
    "inject.kept_context": (
        "Model {name} does not fit in memory with a context of {context} tokens.\n"
        "It takes {needed}, {more} of it for modules that have no kernel in kt and are decoded; {available} are available.\n"
        "The largest context that fits: --context {fits}. To go on at your own risk: --force",
        "上下文为 {context} 个 token 时，内存放不下模型 {name}。\n"
        "需要 {needed}，其中 {more} 用于 kt 中没有内核、需要解码的模块；可用 {available}。\n"
        "可用的最大上下文：--context {fits}。自担风险继续：--force",
    ),
    "inject.kept_too_big": (
        "Model {name} does not fit in memory.\n"
        "It takes {needed}, {more} of it for modules that have no kernel in kt and are decoded; {available} are available.\n"
        "Take a smaller model, or go on at your own risk with --force.",
        "内存放不下模型 {name}。\n需要 {needed}，其中 {more} 用于 kt 中没有内核、需要解码的模块；可用 {available}。\n"
        "请换更小的模型，或自担风险使用 --force。",
    ),
    "inject.buffer": (
        "kt cannot make the table {name} of this model.\nThe initialiser of {cls} in the installed transformers does not.\n"
        "Choose another model: kt model list",
        "kt 无法生成该模型的表 {name}。\n已安装的 transformers 中 {cls} 的初始化函数没有生成它。\n请选择其他模型：kt model list",
    ),
    "inject.cannot_run": (
        "kt cannot run this model of the type {family}: its first step failed in {module}.\n{reason}\n"
        "Choose another model (kt model list), or try another version of transformers (kt version shows the installed one).",
        "kt 无法运行类型为 {family} 的该模型：第一步在 {module} 中失败。\n{reason}\n"
        "请选择其他模型（kt model list），或换用其他版本的 transformers（kt version 显示已安装的版本）。",
    ),
    "inject.not_finite": (
        "This model computes NaN or infinite numbers, first in {module}.\n"
        "A weight of that layer or of one before it is damaged, or its settings in config.json are wrong.\n"
        "Get the model again: kt model pull NAME",
        "该模型的计算结果为 NaN 或无穷大，最先出现在 {module}。\n该层或其前面某层的权重已损坏，或 config.json 中的设置有误。\n"
        "请重新获取模型：kt model pull NAME",
    ),
    "inject.unused_rule": (
        "The rule at {where} matches no module of this model.",
        "{where} 处的规则不匹配该模型的任何模块。",
    ),
    "inject.missing": (
        "The checkpoint lacks tensors that the model needs.\n{count} are missing, among them {names}.\nThe download may be incomplete: kt model pull NAME",
        "检查点缺少模型所需的张量。\n缺少 {count} 个，其中包括 {names}。\n下载可能不完整：kt model pull NAME",
    ),
    "inject.shape": (
        "The tensor {name} has the wrong shape.\nThe file has {found}, the model needs {expected}.\nconfig.json and the weights do not belong together; get the model again: kt model pull NAME",
        "张量 {name} 的形状不正确。\n文件中为 {found}，模型需要 {expected}。\nconfig.json 与权重不匹配；请重新获取模型：kt model pull NAME",
    ),
    "inject.unused": (
        "The checkpoint has tensors that the model has no place for.\n{count} were not used, among them {names}.\nThe model type in config.json may be wrong, or this transformers too old: kt doctor",
        "检查点中有模型无法使用的张量。\n{count} 个未被使用，其中包括 {names}。\nconfig.json 中的模型类型可能有误，或 transformers 版本过旧：kt doctor",
    ),
    "inject.no_generator": (
        "The model type {family} does not write text token by token.\n"
        "It is an encoder, or it keeps no cache of what came before.\nChoose another model: kt model list",
        "模型类型 {family} 不能逐个 token 地生成文本。\n它是编码器，或不缓存前文。\n请选择其他模型：kt model list",
    ),
    "inject.unknown_family": (
        "The model type {family} is not known to the installed transformers ({version}).\nIt is in none of its tables ({reason}).\nUpdate it: pip install -U transformers",
        "已安装的 transformers（{version}）不认识模型类型 {family}。\n它的表（{reason}）中没有该类型。\n请更新：pip install -U transformers",
    ),
}

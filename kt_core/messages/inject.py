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
    "inject.device": (
        "{module} cannot run on the device {device}.\nThe operator {operator} runs on: {known}.\nChange generate_device in the rule file.",
        "{module} 无法在设备 {device} 上运行。\n算子 {operator} 支持：{known}。\n请修改规则文件中的 generate_device。",
    ),
    "inject.own_forward": (
        "The module {module} cannot be replaced.\n{cls} is a {operator} layer that computes something of its own.\n"
        "Leave it as it is by a first rule for its name with the class default (docs/rules.md), given with --rules.",
        "无法替换模块 {module}。\n{cls} 是有自己计算方式的 {operator} 层。\n"
        "请用 --rules 给出规则文件，在最前面加一条匹配其名称、类为 default 的规则，保留原样（见 docs/rules.md）。",
    ),
    "inject.embedding": (
        "The token embedding {name} is stored as {format}.\nkt reads embeddings that have no scales beside them.\n"
        "Choose a version of the model whose embedding is not quantised, or a GGUF file.",
        "词嵌入 {name} 以 {format} 存储。\nkt 只支持不带独立缩放系数的词嵌入。\n请选择词嵌入未量化的模型版本或 GGUF 文件。",
    ),
    "inject.activation": (
        "The experts at {module} use an activation that kt has no kernel for.\nThe activation is {activation}; known: {known}.\nAsk for it in an issue with the model's name.",
        "{module} 处的专家使用了 kt 没有内核的激活函数。\n激活函数为 {activation}；已支持：{known}。\n请提交 issue 并注明模型名称。",
    ),
    "inject.experts_layout": (
        "The experts at {module} have a layout that kt does not run.\n{reason}\nChoose another model: kt model list",
        "{module} 处的专家布局 kt 无法运行。\n{reason}\n请选择其他模型：kt model list",
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
    "inject.unknown_family": (
        "The model type {family} is not known to the installed transformers ({version}).\n{reason}\nUpdate it: pip install -U transformers",
        "已安装的 transformers（{version}）不认识模型类型 {family}。\n{reason}\n请更新：pip install -U transformers",
    ),
}

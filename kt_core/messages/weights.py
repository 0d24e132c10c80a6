"""Messages of weight access."""

MESSAGES: dict[str, tuple[str, str]] = {
    "weights.format": (
        "The format {format} cannot be decoded.\nKnown: {known}.\nConvert the model to one of these.",
        "无法解码格式 {format}。\n已知格式：{known}。\n请将模型转换为其中之一。",
    ),
    "weights.undecodable": (
        "{count} tensor(s) are stored as {format}, which kt cannot decode: {tensors}",
        "{count} 个张量以 kt 无法解码的格式 {format} 存储：{tensors}",
    ),
    "weights.fused_layout": (
        "The fused expert tensor {tensor} has a layout that kt does not read.\nShape {shape}.\nChoose another model.",
        "kt 不支持融合专家张量 {tensor} 的布局。\n形状 {shape}。\n请选择其他模型。",
    ),
    "weights.scale_range": (
        "The scales {tensor} cannot be used.\nGroups of 8 bits are computed with float16 scales, which cannot hold some of these.\n"
        "Choose another version of the model.",
        "无法使用缩放系数 {tensor}。\nkt 以 float16 缩放系数计算 8 位分组，其中一些值超出其范围。\n请选择该模型的其他版本。",
    ),
    "weights.converted": (
        "{path} holds experts of an older converter, which kt does not read.\n{tensor} is split over NUMA nodes, and the rest of "
        "the model is not there.\nConvert the original model instead: kt quant MODEL --method moe_int4",
        "{path} 存放的是旧转换工具的专家权重，kt 不支持读取。\n{tensor} 按 NUMA 节点切分，且模型的其余部分不在其中。\n"
        "请改为转换原始模型：kt quant MODEL --method moe_int4",
    ),
    "weights.conversion": (
        "The tensor {tensor} is stored in a form that kt does not read.\n"
        "transformers converts it on loading ({operation}).\nChoose another model.",
        "kt 不支持读取张量 {tensor} 的存储形式。\ntransformers 加载时会对其进行转换（{operation}）。\n请选择其他模型。",
    ),
    "weights.expert_missing": (
        "expert {expert} of {prefix} lacks its {part} matrix",
        "{prefix} 的专家 {expert} 缺少 {part} 矩阵",
    ),
    "weights.no_tensor": (
        "The checkpoint has no parameter {name}.\nNear names: {near}.",
        "检查点中没有参数 {name}。\n相近名称：{near}。",
    ),
    "weights.no_expert": (
        "The checkpoint has no {part} matrix for expert {index} of {prefix}.\nIt has {count} experts there.",
        "检查点中 {prefix} 的专家 {index} 没有 {part} 矩阵。\n该处共有 {count} 个专家。",
    ),
    "weights.order": (
        "{tensor} has its columns in the order of their activations, which kt does not read.\n"
        "{order} does not ascend (GPTQ with desc_act).\nChoose a version of the model that was quantised without it.",
        "kt 不支持按激活顺序排列列的张量 {tensor}。\n{order} 不是递增顺序（使用 desc_act 的 GPTQ）。\n"
        "请选择未使用该选项量化的模型版本。",
    ),
    "weights.stated_shape": (
        "The tensor {tensor} has the wrong shape.\nIts packed numbers are {shape}, weight_shape says {stated}.\n"
        "Download the model again.",
        "张量 {tensor} 的形状不正确。\n打包数据为 {shape}，weight_shape 为 {stated}。\n请重新下载模型。",
    ),
    "weights.factor": (
        "The tensor {tensor} is damaged.\nIts factor is {value}.\nDownload the model again.",
        "张量 {tensor} 已损坏。\n其系数为 {value}。\n请重新下载模型。",
    ),
    "weights.block_rows": (
        "The tensor {tensor} cannot be divided into its parts.\n"
        "One begins at row {first}, inside a block of {block} rows with one scale.\nChoose another version of the model.",
        "张量 {tensor} 无法按部分切分。\n其中一部分从第 {first} 行开始，落在共用一个缩放系数的 {block} 行块内。\n请选择该模型的其他版本。",
    ),
    "weights.config": (
        "{path} is not a valid model configuration.\n{reason}\nDownload the model again.",
        "{path} 不是有效的模型配置。\n{reason}\n请重新下载模型。",
    ),
    "weights.not_finite": (
        "{path} is not a valid model configuration.\nNot a finite number: {fields}.\nDownload the model again.",
        "{path} 不是有效的模型配置。\n以下项不是有限数：{fields}。\n请重新下载模型。",
    ),
    "weights.not_matrix": (
        "The tensor {name} has the wrong shape.\nThe file has {shape}, the model needs a matrix.\n"
        "config.json and the weights do not belong together; get the model again: kt model pull NAME",
        "张量 {name} 的形状不正确。\n文件中为 {shape}，模型需要矩阵。\n"
        "config.json 与权重不匹配；请重新获取模型：kt model pull NAME",
    ),
    "weights.tokenizer": (
        "The tokenizer of {path} cannot be read.\n{reason}\nDownload the model again.",
        "无法读取 {path} 的分词器。\n{reason}\n请重新下载模型。",
    ),
    "weights.chat_template": (
        "The chat template of {path} is not one: {reason}\nDownload the model again, or mend the template.",
        "{path} 的聊天模板无效：{reason}\n请重新下载模型，或修正模板。",
    ),
    "weights.no_tokenizer": (
        "There is no tokenizer in {path}.\nNo file in it says which tokens a text is made of.\n"
        "Put the model's tokenizer files there, such as tokenizer.json.",
        "{path} 中没有分词器。\n其中没有文件说明文本由哪些 token 组成。\n请放入该模型的分词器文件，例如 tokenizer.json。",
    ),
    "weights.tokenizer_kind": (
        "The model's tokenizer is of a kind that kt cannot read from GGUF: {kind}.\nKnown: {known}.\n"
        "Use the model's safetensors version.",
        "kt 无法从 GGUF 读取此类分词器：{kind}。\n已知类型：{known}。\n请使用该模型的 safetensors 版本。",
    ),
    "weights.tokenizer_pre": (
        "The model's text splitting {name} (tokenizer.ggml.pre) is unknown.\nKnown: {known}.\n"
        "Use the model's safetensors version.",
        "未知的文本切分方式 {name}（tokenizer.ggml.pre）。\n已知：{known}。\n请使用该模型的 safetensors 版本。",
    ),
}

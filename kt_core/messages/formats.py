"""Messages of checkpoint headers."""

MESSAGES: dict[str, tuple[str, str]] = {
    "formats.damaged": (
        "{path} is damaged or not a sound {kind} file.\n{problems}\nDownload it again, or convert it again.",
        "{path} 已损坏，或不是正确的 {kind} 文件。\n{problems}\n请重新下载或重新转换。",
    ),
    "formats.unsupported": (
        "{path} is a {kind} file that kt cannot read.\n{problems}\nConvert the model again with current tools.",
        "kt 无法读取 {kind} 文件 {path}。\n{problems}\n请用当前版本的工具重新转换模型。",
    ),
    "formats.text_missing": (
        "There is no file {path}.\nIt was to be read as text.\nCheck the path.",
        "文件 {path} 不存在。\n原要作为文本读取。\n请检查路径。",
    ),
    "formats.text_unreadable": (
        "{path} cannot be read as text.\n{reason}.\nChoose a text file in UTF-8.",
        "无法将 {path} 作为文本读取。\n{reason}。\n请选择 UTF-8 文本文件。",
    ),
    "formats.text_no_utf8": ("The byte at {place} is not UTF-8", "第 {place} 字节不是 UTF-8"),
    "formats.text_empty": ("It is empty", "文件为空"),
    "formats.text_binary": ("The byte at {place} is 0, which no text has", "第 {place} 字节为 0，文本中不会出现"),
    "formats.no_file": (
        "There is no file {path}.\n\nCheck the path, or see `kt model list`.",
        "文件 {path} 不存在。\n\n请检查路径，或查看 `kt model list`。",
    ),
    "formats.unreadable": (
        "{path} cannot be read.\n{reason}\nCheck the path and its permissions.",
        "无法读取 {path}。\n{reason}\n请检查路径和权限。",
    ),
    "formats.no_gguf": (
        "The folder {path} holds no .gguf file.\n\nName a GGUF file or its folder.",
        "目录 {path} 中没有 .gguf 文件。\n\n请指定 GGUF 文件或其所在目录。",
    ),
    "formats.no_safetensors": (
        "The folder {path} holds no .safetensors file.\n\nName a model folder, or a GGUF file.",
        "目录 {path} 中没有 .safetensors 文件。\n\n请指定模型目录或 GGUF 文件。",
    ),
    "formats.several": (
        "The folder {path} holds several models.\n{names}\nName one of the files instead of the folder.",
        "目录 {path} 中有多个模型。\n{names}\n请指定其中一个文件，而不是目录。",
    ),
    "formats.more": ("and {count} more", "以及另外 {count} 个问题"),
    "formats.in_file": ("{file}: {problem}", "{file}：{problem}"),
    "formats.empty": ("the file is empty", "文件为空"),
    "formats.not_gguf": (
        "it does not start with the GGUF magic (found {found})",
        "文件开头不是 GGUF 标识（实际为 {found}）",
    ),
    "formats.not_safetensors": ("it is not a safetensors file but {found}", "它不是 safetensors 文件，而是 {found}"),
    "formats.big_endian": (
        "it is a big-endian GGUF file; kt reads little-endian ones",
        "这是大端序 GGUF 文件；kt 只读取小端序文件",
    ),
    "formats.version": (
        "it is GGUF version {version}; kt reads versions 2 and 3",
        "GGUF 版本为 {version}；kt 支持版本 2 和 3",
    ),
    "formats.ends_early": (
        "{what}: needs {needed} bytes at byte {at}, but {left} are left",
        "{what}：在字节 {at} 处需要 {needed} 字节，但只剩 {left} 字节",
    ),
    "formats.counts": (
        "it claims {keys} keys and {tensors} tensors, more than the {left} bytes that follow can hold",
        "文件声称有 {keys} 个键和 {tensors} 个张量，超过其后 {left} 字节所能容纳的数量",
    ),
    "formats.too_many": (
        "it claims {keys} keys and {tensors} tensors; the limits are {limits}",
        "文件声称有 {keys} 个键和 {tensors} 个张量；上限为 {limits}",
    ),
    "formats.value_type": ("{what}: unknown value type {type}", "{what}：未知的值类型 {type}"),
    "formats.nesting": (
        "{what}: arrays nested more than {limit} deep",
        "{what}：数组嵌套超过 {limit} 层",
    ),
    "formats.array_length": (
        "{what}: an array of {count} elements does not fit in the {left} bytes that are left (and at most {limit} are read)",
        "{what}：含 {count} 个元素的数组超过上限 {limit} 或剩余的 {left} 字节",
    ),
    "formats.empty_key": ("key {index} has an empty name", "第 {index} 个键的名称为空"),
    "formats.duplicate_key": ("key {name} appears twice", "键 {name} 出现两次"),
    "formats.not_utf8": ("{what} is not UTF-8 text", "{what} 不是 UTF-8 文本"),
    "formats.alignment_type": (
        "general.alignment has value type {type} instead of 4 (unsigned 32 bit)",
        "general.alignment 的值类型为 {type}，应为 4（无符号 32 位）",
    ),
    "formats.alignment_value": (
        "general.alignment is {value}, not a power of two from 1 to {limit}",
        "general.alignment 为 {value}，不是 1 到 {limit} 之间的 2 的幂",
    ),
    "formats.empty_tensor_name": ("a tensor has an empty name", "有张量名称为空"),
    "formats.duplicate_tensor": ("tensor {tensor} appears twice", "张量 {tensor} 出现两次"),
    "formats.tensor_twice": (
        "tensor {tensor} is in both {first} and {second}",
        "张量 {tensor} 同时存在于 {first} 和 {second}",
    ),
    "formats.too_many_dims": (
        "tensor {tensor} has {dims} dimensions; at most {limit} are possible",
        "张量 {tensor} 有 {dims} 个维度；最多允许 {limit} 个",
    ),
    "formats.zero_dim": (
        "tensor {tensor} has a dimension of zero: {shape}",
        "张量 {tensor} 有为零的维度：{shape}",
    ),
    "formats.too_large": (
        "tensor {tensor} has impossible dimensions: {shape}",
        "张量 {tensor} 的维度不可能存在：{shape}",
    ),
    "formats.broken_rows": (
        "tensor {tensor} has rows of {row} elements, not a multiple of the {format} block of {block}",
        "张量 {tensor} 每行 {row} 个元素，不是 {format} 块大小 {block} 的倍数",
    ),
    "formats.unknown_type": (
        "tensor type {type} is unknown; {count} tensor(s) have it: {tensors}",
        "未知的张量类型 {type}；{count} 个张量使用它：{tensors}",
    ),
    "formats.known_types": ("known types: {known}", "已知类型：{known}"),
    "formats.unknown_dtype": (
        "tensor {tensor} has the unknown dtype {dtype}; known: {known}",
        "张量 {tensor} 的数据类型 {dtype} 未知；已知：{known}",
    ),
    "formats.misaligned": (
        "tensor {tensor} starts at offset {offset}, not a multiple of the alignment {alignment}",
        "张量 {tensor} 的偏移 {offset} 不是对齐值 {alignment} 的倍数",
    ),
    "formats.truncated": (
        "it is truncated: expected at least {expected} bytes, found {actual}; "
        "{count} tensor(s) lie beyond the end, the first is {tensor}",
        "文件被截断：至少应有 {expected} 字节，实际 {actual} 字节；{count} 个张量超出末尾，第一个是 {tensor}",
    ),
    "formats.overlap": ("{second} overlaps {first}", "{second} 与 {first} 重叠"),
    "formats.hole": (
        "{bytes} bytes at byte {at}, before {tensor}, belong to no tensor",
        "字节 {at} 处（{tensor} 之前）的 {bytes} 字节不属于任何张量",
    ),
    "formats.trailing": (
        "{bytes} bytes from byte {at} on belong to no tensor",
        "从字节 {at} 起的 {bytes} 字节不属于任何张量",
    ),
    "formats.joined": (
        "another GGUF file starts at byte {at}: split files were joined by plain copying; "
        "keep the parts side by side, or merge them with `llama-gguf-split --merge`",
        "字节 {at} 处开始另一个 GGUF 文件：分片被直接拼接；请将分片放在同一目录，或用 `llama-gguf-split --merge` 合并",
    ),
    "formats.same_part": (
        "part number {number} appears twice: {names}",
        "分片编号 {number} 出现两次：{names}",
    ),
    "formats.part_number": (
        "part numbers {numbers} do not belong to a model of {count} parts",
        "分片编号 {numbers} 不属于含 {count} 个分片的模型",
    ),
    "formats.parts_missing": (
        "only {found} of {count} parts are there; missing: {missing}",
        "{count} 个分片中只有 {found} 个；缺少：{missing}",
    ),
    "formats.parts_disagree": (
        "the parts hold {found} tensors, but the first part promises {promised}",
        "各分片共有 {found} 个张量，但第一个分片声明为 {promised} 个",
    ),
    "formats.header_length": (
        "the header's length is {length}, but {left} bytes follow and the limit is {limit}",
        "文件头长度为 {length}，但其后只有 {left} 字节，上限为 {limit}",
    ),
    "formats.bad_json": ("the header is not valid JSON ({reason})", "文件头不是有效的 JSON（{reason}）"),
    "formats.bad_entry": (
        "tensor {tensor} lacks a valid dtype, shape or data_offsets",
        "张量 {tensor} 缺少有效的 dtype、shape 或 data_offsets",
    ),
    "formats.span": (
        "tensor {tensor}: {dtype} {shape} does not take {bytes} bytes",
        "张量 {tensor}：{dtype} {shape} 所占空间不是 {bytes} 字节",
    ),
    "formats.bad_index": ("{file} is not a valid index", "{file} 不是有效的索引"),
    "formats.index_entry": (
        "the index sends tensor {tensor} to {file}, which is not a file name",
        "索引将张量 {tensor} 指向 {file}，这不是文件名",
    ),
    "formats.shard_missing": (
        "shard {shard} is missing ({count} tensors)",
        "缺少分片 {shard}（{count} 个张量）",
    ),
    "formats.not_in_shard": (
        "tensor {tensor} is not in {shard}, where the index puts it",
        "张量 {tensor} 不在索引所指的 {shard} 中",
    ),
    "formats.architecture": (
        "The GGUF architecture {name} is not one that kt runs.\nKnown: {known}.\nChoose another model.",
        "kt 不支持 GGUF 架构 {name}。\n已知架构：{known}。\n请选择其他模型。",
    ),
    "formats.block_count": (
        "{path} contradicts itself.\n{name} is {count}, but the file has the tensors of {found} blocks.\n"
        "Download it again, or convert it again.",
        "{path} 自相矛盾。\n{name} 为 {count}，但文件中有 {found} 个块的张量。\n请重新下载或重新转换。",
    ),
    "formats.key_missing": (
        "{path} lacks the metadata key {name}.\nIt is damaged, or an old or unusual tool made it.\nConvert the model again with current tools.",
        "{path} 缺少元数据键 {name}。\n文件已损坏，或由旧版或特殊工具生成。\n请用当前版本的工具重新转换模型。",
    ),
    "formats.key_value": (
        "{path} has an impossible value in its metadata.\n{name} is {value}; expected {wanted}.\n"
        "Download it again, or convert it again.",
        "{path} 的元数据中有不可能的值。\n{name} 为 {value}；应为 {wanted}。\n请重新下载或重新转换。",
    ),
    "formats.tensor_dims": (
        "{path} lacks a sound tensor {tensor}.\nIt needs {dims} dimensions; found: {found}.\n"
        "Download it again, or convert it again.",
        "{path} 缺少正确的张量 {tensor}。\n需要 {dims} 个维度；实际：{found}。\n请重新下载或重新转换。",
    ),
    "formats.vocabulary": (
        "{path} has more tokens than embedding rows.\n{tokens} tokens, {rows} rows.\nConvert the model again.",
        "{path} 的 token 数多于嵌入行数。\n{tokens} 个 token，{rows} 行。\n请重新转换模型。",
    ),
    "formats.setting": (
        "{path} has a setting that kt does not know in this architecture.\n{name} is {value}.\nChoose another model.",
        "{path} 含有 kt 在此架构下不支持的设置。\n{name} 为 {value}。\n请选择其他模型。",
    ),
    "formats.heads": (
        "{path} has impossible attention sizes.\nQuery / key heads and head length: {sizes}.\n"
        "Download it again, or convert it again.",
        "{path} 的注意力尺寸不可能存在。\n查询头数 / 键头数、头长度：{sizes}。\n请重新下载或重新转换。",
    ),
    "formats.value_length": (
        "{path} has attention keys and values of different lengths.\nkt does not run such models.\n"
        "Choose another model.",
        "{path} 的注意力键和值长度不同。\nkt 不支持此类模型。\n请选择其他模型。",
    ),
    "formats.rope": (
        "{path} uses a rotary scaling that kt does not know.\nIt is {kind}; known: none, linear, yarn, rope_freqs.weight.\nChoose another model.",
        "{path} 使用了 kt 不支持的旋转位置缩放。\n类型：{kind}；已知：none、linear、yarn、rope_freqs.weight。\n请选择其他模型。",
    ),
    "formats.rope_factors": (
        "{path} has rotary factors that are not positive numbers.\nTensor rope_freqs.weight.\n"
        "Download it again, or convert it again.",
        "{path} 的旋转因子不是正数。\n张量 rope_freqs.weight。\n请重新下载或重新转换。",
    ),
    "formats.gating": (
        "{path} uses the expert gating function {found}.\nThis architecture is known with 2 (sigmoid) only.\n"
        "Choose another model.",
        "{path} 使用专家门控函数 {found}。\n此架构仅支持 2（sigmoid）。\n请选择其他模型。",
    ),
    "formats.tensor_missing": ("tensor {tensor} is missing", "缺少张量 {tensor}"),
    "formats.shape": (
        "tensor {tensor} has shape {found}; the metadata asks for {wanted}",
        "张量 {tensor} 的形状为 {found}；元数据要求 {wanted}",
    ),
    "formats.quant_method": (
        "{path} holds weights quantised in a way that kt does not read: {method}.\n"
        "kt reads these values of quant_method: {known}.\n"
        "Choose a version of the model in one of them, an unquantised one (BF16, F16), or a GGUF file.",
        "{path} 中的权重采用 kt 不支持的量化方式：{method}。\nkt 支持的 quant_method：{known}。\n"
        "请选择该模型的上述量化版本、未量化（BF16、F16）版本或 GGUF 文件。",
    ),
    "formats.quant_setting": (
        "quantization_config: {field} is {value}; kt reads {known}",
        "quantization_config：{field} 为 {value}；kt 支持 {known}",
    ),
    "formats.quant_value": (
        "quantization_config: {field} is {value}, expected {expected}",
        "quantization_config：{field} 为 {value}，应为 {expected}",
    ),
    "formats.side_missing": ("{tensor} needs {side}, which is missing", "{tensor} 需要 {side}，但缺少该张量"),
    "formats.side_shape": (
        "{tensor} has shape {shape}, expected {expected}",
        "{tensor} 的形状为 {shape}，应为 {expected}",
    ),
    "formats.side_dtype": (
        "{tensor} is stored as {dtype}, expected {expected}",
        "{tensor} 以 {dtype} 存储，应为 {expected}",
    ),
    "formats.group": (
        "{tensor}: {cols} columns are no whole number of groups of {group}",
        "{tensor}：{cols} 列不是 {group} 列一组的整数倍",
    ),
    "formats.kernel_group": (
        "{tensor} has a scale for {group} weights; kt has kernels for multiples of {step}",
        "{tensor} 每 {group} 个权重一个缩放系数；kt 的内核支持 {step} 的倍数",
    ),
    "formats.kernel_cols": (
        "{tensor} has {cols} columns; kt has kernels for multiples of {step}",
        "{tensor} 有 {cols} 列；kt 的内核支持 {step} 的倍数",
    ),
    "formats.no_group": (
        "{tensor} is quantised, but no group of quantization_config is for it",
        "{tensor} 已量化，但 quantization_config 中没有对应的组",
    ),
    "formats.ignored": (
        "{tensor} is quantised, but quantization_config says that it is not",
        "{tensor} 已量化，但 quantization_config 将其列为不量化",
    ),
    "formats.orphan": (
        "{tensor} belongs to no quantised weight that kt knows",
        "{tensor} 不属于 kt 已知的任何量化权重",
    ),
}

"""Messages of adapters."""

MESSAGES: dict[str, tuple[str, str]] = {
    "lora.none": (
        "{folder} holds no adapter.\nThere must be adapter_config.json and adapter_model.safetensors in it.\n"
        "kt sft train writes such a folder, kt sft --help tells what makes it of other forms.",
        "{folder} 中没有适配器。\n其中应有 adapter_config.json 和 adapter_model.safetensors。\n"
        "kt sft train 会写出这样的文件夹，其他形式如何转换见 kt sft --help",
    ),
    "lora.damaged": (
        "{file} is damaged.\n{reason}\nCopy or download the adapter again.",
        "{file} 已损坏。\n{reason}\n请重新复制或下载该适配器。",
    ),
    "lora.kind": (
        "The adapter in {folder} has {name} = {value}.\nOnly plain LoRA (W + B A) is served.\n"
        "Merge it into the model with the program that made it.",
        "{folder} 中的适配器设置了 {name} = {value}。\n这里只支持普通 LoRA（W + B A）。\n请用制作它的程序把它合并进模型。",
    ),
    "lora.tensor": (
        "The adapter in {folder} holds {name}.\nThat is neither lora_A nor lora_B of a layer.\n"
        "Merge it into the model with the program that made it.",
        "{folder} 中的适配器含有 {name}。\n它既不是某一层的 lora_A 也不是 lora_B。\n请用制作它的程序把它合并进模型。",
    ),
    "lora.half": (
        "The adapter in {folder} holds {name} without its other half.\n\nCopy or download the adapter again.",
        "{folder} 中的适配器只有 {name}，缺少另一半。\n\n请重新复制或下载该适配器。",
    ),
    "lora.shapes": (
        "In the adapter in {folder}, lora_A {a} and lora_B {b} of {name} do not fit together.\n\n"
        "Copy or download the adapter again.",
        "{folder} 中的适配器里，{name} 的 lora_A {a} 与 lora_B {b} 不匹配。\n\n请重新复制或下载该适配器。",
    ),
    "lora.not_finite": (
        "The adapter in {folder} holds NaN or infinity in {name}.\n\nTake an earlier checkpoint of its training.",
        "{folder} 中的适配器在 {name} 里含有 NaN 或无穷大。\n\n请使用训练中更早的检查点。",
    ),
    "lora.names": (
        "{count} of the adapter's layers in {folder} are not in this model, the first is {first}.\n"
        "It was made for another model.\nRun the model that its adapter_config.json names.",
        "{folder} 中的适配器有 {count} 个层不在此模型中，第一个是 {first}。\n它是为另一个模型制作的。\n"
        "请运行其 adapter_config.json 中所写的模型。",
    ),
    "lora.fit": (
        "The adapter in {folder} does not fit this model at {name}: {reason}\nIt was made for another model.\n"
        "Run the model that its adapter_config.json names.",
        "{folder} 中的适配器在 {name} 处与此模型不符：{reason}\n它是为另一个模型制作的。\n"
        "请运行其 adapter_config.json 中所写的模型。",
    ),
    "lora.shared_experts": (
        "The adapter in {folder} changes routed experts that are shared out with a device.\n"
        "Additions to such experts are not computed.\nMerge it with kt sft merge, or run without --device.",
        "{folder} 中的适配器修改了与设备共享的路由专家。\n这类专家不计算附加部分。\n"
        "请用 kt sft merge 合并，或不使用 --device 运行。",
    ),
    "lora.expert_format": (
        "The adapter in {folder} changes experts that are stored as {format}.\n"
        "The kernels for additions do not decode that.\nMerge it with kt sft merge.",
        "{folder} 中的适配器修改了以 {format} 存储的专家。\n计算附加部分的内核不解码这种格式。\n请用 kt sft merge 合并。",
    ),
    "lora.taken": (
        "There is a model or an adapter named {name} already.\n\nChoose another name, or drop that one first.",
        "已经有名为 {name} 的模型或适配器。\n\n请换一个名称，或先卸载它。",
    ),
    "lora.unknown": (
        "No adapter is named {name}.\n\nThere are: {known}.",
        "没有名为 {name} 的适配器。\n\n现有：{known}。",
    ),
    "lora.name": (
        "{text} is no adapter.\n\nGive it as NAME=FOLDER, the name of letters, digits, dots, dashes and underscores.",
        "{text} 不是适配器。\n\n请写作 名称=文件夹，名称由字母、数字、点、横线和下划线组成。",
    ),
    "lora.closed": (
        "This server loads no adapters while it runs.\n\nStart it with --lora-folder FOLDER to allow those in that folder.",
        "此服务器运行时不加载适配器。\n\n启动时使用 --lora-folder 文件夹，即可加载该文件夹中的适配器。",
    ),
    "lora.outside": (
        "{path} is not in the folder from which adapters may be loaded.\n\nGive a path within it.",
        "{path} 不在允许加载适配器的文件夹中。\n\n请给出其中的路径。",
    ),
}

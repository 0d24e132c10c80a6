"""Messages of devices: what is missing there, and what does not fit."""

MESSAGES: dict[str, tuple[str, str]] = {
    "device.unknown": (
        "There is no device {device}.\nKnown: {known}, with a number where there are several, such as cuda:1.\nChoose one of them, or leave --device out to compute on the CPU.",
        "没有设备 {device}。\n可用：{known}，有多个时加编号，例如 cuda:1。\n请选择其中之一，或去掉 --device 以在 CPU 上计算。",
    ),
    "device.missing": (
        "The device {device} cannot be used.\n{reason}\nLeave --device out to compute on the CPU; kt doctor shows what is there.",
        "无法使用设备 {device}。\n{reason}\n去掉 --device 即可在 CPU 上计算；kt doctor 会显示可用的硬件。",
    ),
    "device.no_backend": (
        "The installed torch {version} has no {kind} device here.",
        "已安装的 torch {version} 在此没有 {kind} 设备。",
    ),
    "device.no_number": ("torch sees {count} of the kind {kind}.", "torch 能看到 {count} 个 {kind} 设备。"),
    "device.untested_graphs": (
        "graphs on devices of the kind {kind} have never been tried",
        "尚未在 {kind} 设备上尝试过图",
    ),
    "device.cpu_graphs": ("the device is the CPU", "设备就是 CPU"),
    "device.no_driver": ("the driver's library cannot be opened: {reason}", "无法打开驱动程序库：{reason}"),
    "device.words_silent": (
        "the device did not write to memory within {seconds} s",
        "设备在 {seconds} 秒内没有写入内存",
    ),
    "device.weights_big": (
        "The model does not fit on {device}.\nAll but the routed experts takes {rest} there, {experts} experts of each layer {resident}, keys and values {cache}; {free} can be used.\nUse --gpu-experts {fits}, or a smaller --context.",
        "模型放不进 {device}。\n除路由专家外需 {rest}，每层 {experts} 个专家需 {resident}，键和值需 {cache}；可用 {free}。\n请使用 --gpu-experts {fits}，或更小的 --context。",
    ),
    "device.full": (
        "The memory of {device} is full.\n{reason}\nUse fewer --gpu-experts, or a smaller --context or --max-running.",
        "{device} 的内存已满。\n{reason}\n请减少 --gpu-experts，或使用更小的 --context 或 --max-running。",
    ),
    "device.placement": (
        "There is no placement {placement}.\nKnown: {known}.\nChoose one of them with --kt-expert-placement-strategy.",
        "没有名为 {placement} 的放置方式。\n可用：{known}。\n请用 --kt-expert-placement-strategy 选择其中之一。",
    ),
    "device.statistics": (
        "The statistics in {path} are of another model.\nThey count {found} layers and experts, and the model has {expected}.\nGive a file of this model, or leave --init-expert-location out.",
        "{path} 中的统计属于另一个模型。\n其层数和专家数为 {found}，而模型为 {expected}。\n请提供该模型的文件，或去掉 --init-expert-location。",
    ),
    "device.statistics_file": (
        "{path} holds no statistics of experts.\n{reason}\nGive a file that counts [stretches, layers, experts], or leave --init-expert-location out.",
        "{path} 中没有专家的统计。\n{reason}\n请提供计数 [stretches, layers, experts] 的文件，或去掉 --init-expert-location。",
    ),
    "device.no_register": (
        "copies from the CPU's own memory have never been tried on devices of the kind {kind}",
        "尚未在 {kind} 设备上尝试过从 CPU 内存直接复制",
    ),
    "device.not_registered": (
        "the driver does not take {size} of memory for copies (code {code})",
        "驱动程序未接受 {size} 的内存用于复制（代码 {code}）",
    ),
}

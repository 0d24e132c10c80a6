"""Messages of the CPU kernels."""

MESSAGES: dict[str, tuple[str, str]] = {
    "kernels.missing": (
        "The native kernels could not be loaded.\n{why}\nReinstall kt with a C++20 compiler present: pip install --force-reinstall kt-cli",
        "无法加载本地计算内核。\n{why}\n请在装有 C++20 编译器的环境中重新安装：pip install --force-reinstall kt-cli",
    ),
    "kernels.unknown_tier": (
        "Unknown kernel tier '{name}'.\nKnown tiers: {known}. This machine can run: {runnable}.\nSet KT_KERNEL_CPU_VARIANT to one of them, or unset it.",
        "未知的内核级别“{name}”。\n已知级别：{known}。本机可运行：{runnable}。\n请将 KT_KERNEL_CPU_VARIANT 设为其中之一，或取消设置。",
    ),
    "kernels.tier_not_runnable": (
        "Kernel tier {name} cannot run on this machine.\nMissing: {missing}. This machine can run: {runnable}.\nSet KT_KERNEL_CPU_VARIANT to one of them, or unset it.",
        "本机无法运行内核级别 {name}。\n缺少：{missing}。本机可运行：{runnable}。\n请将 KT_KERNEL_CPU_VARIANT 设为其中之一，或取消设置。",
    ),
    "kernels.format": (
        "There is no CPU kernel for weight format {format}.\nFormats with a kernel: {known}.\nUse a checkpoint in one of these formats.",
        "没有适用于权重格式 {format} 的 CPU 内核。\n已支持的格式：{known}。\n请使用上述格式的模型文件。",
    ),
    "kernels.sft": (
        'KTMoEWrapper computes forward only.\nmode="sft" was asked for; experts are trained through another function.\nUse kt_core.kernels.training.train, or the command: kt sft train',
        'KTMoEWrapper 只支持前向计算。\n请求了 mode="sft"；专家的训练由另一个函数完成。\n请使用 kt_core.kernels.training.train，或命令：kt sft train',
    ),
    "kernels.cpu_save": (
        "cpu_save is not available.\nNo packed weights are written: they are packed from the checkpoint at each load.\nLeave cpu_save at False.",
        "cpu_save 不可用。\nkt 不保存打包后的权重：每次加载时由检查点打包。\n请保持 cpu_save 为 False。",
    ),
    "kernels.capture": (
        "CPU experts cannot be captured into a CUDA graph.\nA replay would repeat the copies without the computation between them.\nRun this layer outside of the graph.",
        "CPU 专家无法被捕获到 CUDA 图中。\n重放时只会重复拷贝，而不会执行其间的计算。\n请在图之外运行该层。",
    ),
    "kernels.biased_experts": (
        "The experts at {prefix} have biases, which KTMoEWrapper does not take.\nLeaving them out would give wrong results.\nUse kt_core.kernels.Experts, or run the model: kt run",
        "{prefix} 处的专家带有偏置，KTMoEWrapper 不支持。\n忽略偏置会得到错误结果。\n请使用 kt_core.kernels.Experts，或直接运行模型：kt run",
    ),
    "kernels.no_layer": (
        "The checkpoint has no one set of experts for layer {layer}.\nFound: {layers}.\nCheck layer_idx and weight_path.",
        "检查点中没有第 {layer} 层的唯一一组专家。\n找到：{layers}。\n请检查 layer_idx 和 weight_path。",
    ),
    "kernels.no_writer": (
        "Weights cannot be rounded to the format {format} here.\nFormats that can be written: {known}.\nChoose a method of one of these, or load a checkpoint that is in the format.",
        "此处无法将权重转换为格式 {format}。\n可写入的格式：{known}。\n请选择其中之一对应的方法，或加载该格式的检查点。",
    ),
    "kernels.other_format": (
        "The checkpoint's experts are {found}, the method reads {wanted}.\nWeights cannot be rounded to {wanted} while loading.\nChoose the method of the checkpoint, or LLAMAFILE, which takes any.",
        "检查点中的专家格式为 {found}，而该方法读取 {wanted}。\n加载时无法转换为 {wanted}。\n请选择与检查点对应的方法，或接受任意格式的 LLAMAFILE。",
    ),
    "kernels.activation": (
        "There is no CPU kernel for the activation {activation}.\nKnown activations: {known}.\nUse a model with one of them.",
        "没有适用于激活函数 {activation} 的 CPU 内核。\n已知的激活函数：{known}。\n请使用采用其中之一的模型。",
    ),
}

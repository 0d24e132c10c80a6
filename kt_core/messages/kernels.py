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
    "kernels.activation": (
        "There is no CPU kernel for the activation {activation}.\nKnown activations: {known}.\nUse a model with one of them.",
        "没有适用于激活函数 {activation} 的 CPU 内核。\n已知的激活函数：{known}。\n请使用采用其中之一的模型。",
    ),
}

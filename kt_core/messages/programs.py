"""Why a model's step cannot be one native program, and what runs instead."""

MESSAGES: dict[str, tuple[str, str]] = {
    "programs.parts": (
        "{cls} has parts that no program knows ({parts}; known: {known})",
        "{cls} 含有程序不支持的部分（{parts}；支持：{known}）",
    ),
    "programs.layers": ("{cls} has layers that no program knows ({kinds})", "{cls} 含有程序不支持的层（{kinds}）"),
    "programs.missing": ("{cls} has no {part}", "{cls} 没有 {part}"),
    "programs.not_ours": (
        "{part} is computed by {cls} and not by kt's kernels",
        "{part} 由 {cls} 计算，而非 kt 的内核",
    ),
    "programs.norm": ("{cls} is no RMSNorm that the kernels compute", "{cls} 不是内核支持的 RMSNorm"),
    "programs.activation": ("{cls} has another activation than SiLU", "{cls} 的激活函数不是 SiLU"),
    "programs.router": ("{cls} chooses experts in a way that no rule describes", "{cls} 选择专家的方式没有对应的规则"),
    "programs.rotary": (
        "{cls} has frequencies that depend on the length of the text",
        "{cls} 的旋转频率随文本长度变化",
    ),
    "programs.latent": (
        "the latent of {cls} has {columns} columns, not a multiple of 16",
        "{cls} 的潜变量有 {columns} 列，不是 16 的倍数",
    ),
    "programs.failed": ("{cls} could not be read as a program ({reason})", "无法将 {cls} 读取为程序（{reason}）"),
    "programs.ends": (
        "the program's embedding and head differ from {cls} by {error:.1e} of the largest logit (bound {bound:.1e})",
        "程序的词嵌入与输出头和 {cls} 相差最大 logit 的 {error:.1e}（上限 {bound:.1e}）",
    ),
    "programs.differs": (
        "layer {layer} as a program differs from {cls} by {error:.1e} of its largest output (bound {bound:.1e})",
        "第 {layer} 层的程序结果与 {cls} 相差其最大输出的 {error:.1e}（上限 {bound:.1e}）",
    ),
}

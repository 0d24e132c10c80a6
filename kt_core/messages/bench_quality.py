"""Messages of `kt bench quality`."""

_EXAMPLES = (
    "kt bench quality demo-int4 demo-int8 --vs demo --text wiki.txt\n"
    "kt bench quality ./model.gguf --text wiki.txt --questions mmlu.jsonl --json\n"
    "kt bench quality demo-int4 demo --questions mmlu.jsonl"
)

MESSAGES: dict[str, tuple[str, str]] = {
    "bench_quality.help": (
        "Judge precisions of a model: perplexity of a text, and with --vs how far they are from another one\n"
        "Compared are the distributions of every token (KL divergence, in nats, its 99th percentile, share of equal first choices) and the "
        "output of every layer for the same input (relative error, mean and worst). Size and speed stand beside.",
        "评估模型的各种精度：文本困惑度，以及用 --vs 指定时与另一精度的差距\n"
        "比较每个 token 的分布（KL 散度，单位 nat；其第 99 百分位；首选一致的比例）以及相同输入下每层的输出（相对误差，平均与最大）。"
        "同时列出大小与速度。",
    ),
    "bench_quality.examples": (_EXAMPLES, _EXAMPLES),
    "bench_quality.names": ("Models: names, GGUF files or folders", "模型：名称、GGUF 文件或文件夹"),
    "bench_quality.text": (
        "Text whose tokens are predicted, UTF-8; default: none, then --questions is needed",
        "用于预测的文本，UTF-8；默认没有，此时需要 --questions",
    ),
    "bench_quality.vs": (
        "Model that the others are compared with, such as the original; default: none",
        "作为比较基准的模型，例如原始模型；默认没有",
    ),
    "bench_quality.questions": (
        "Multiple choice as JSON lines with question, choices and answer; alone it gives the accuracy; default: none",
        "选择题，JSON 行，含 question、choices 与 answer；单独使用时给出准确率；默认没有",
    ),
    "bench_quality.tokens": ("Tokens of the text to take; default: 2048", "取文本的 token 数；默认为 2048"),
    "bench_quality.window": (
        "Tokens that are read in one go, each part from its own beginning; default: 512",
        "一次读取的 token 数，各段独立开始；默认为 512",
    ),
    "bench_quality.nothing": (
        "There is nothing to judge by.\n--text gives perplexity, distances and speed; --questions gives accuracy.\n"
        "Give one of them, or both.",
        "没有评估依据。\n--text 给出困惑度、差距与速度；--questions 给出准确率。\n请至少指定其一。",
    ),
    "bench_quality.vs_text": (
        "--vs needs --text.\nModels are compared by what they predict of a text; accuracy is no distance.\n"
        "Give --text, or name both models without --vs.",
        "--vs 需要 --text。\n模型之间比较的是对文本的预测；准确率不是差距。\n请给出 --text，或不用 --vs 直接列出两个模型。",
    ),
    "bench_quality.window_untrained": (
        "A window of {window} tokens is longer than {name} was made for.\nIt was trained for {trained}; beyond that its figures say nothing.\n"
        "Choose --window {trained} or less.",
        "窗口 {window} 个 token 超出 {name} 的能力。\n它只训练到 {trained}；超出后的结果没有意义。\n请将 --window 设为 {trained} 或更小。",
    ),
    "bench_quality.window_long": (
        "A window of {window} tokens is longer than all {tokens}.\nThe text is read in whole windows.\nChoose a smaller --window or more "
        "--tokens.",
        "窗口 {window} 个 token 超过总数 {tokens}。\n文本按完整窗口读取。\n请减小 --window 或增大 --tokens。",
    ),
    "bench_quality.column_name": ("MODEL", "模型"),
    "bench_quality.column_size": ("SIZE", "大小"),
    "bench_quality.column_perplexity": ("PERPLEXITY", "困惑度"),
    "bench_quality.column_kl": ("KL", "KL"),
    "bench_quality.column_p99": ("KL P99", "KL P99"),
    "bench_quality.column_top1": ("TOP-1", "首选一致"),
    "bench_quality.column_layers": ("LAYER ERROR", "层误差"),
    "bench_quality.column_accuracy": ("ACCURACY", "准确率"),
    "bench_quality.column_prefill": ("PREFILL TOK/S", "预填充 TOK/S"),
    "bench_quality.column_decode": ("DECODE TOK/S", "解码 TOK/S"),
    "bench_quality.interrupted": ("Interrupted; these models were judged before", "已中断；以下为此前评估的模型"),
    "bench_quality.ended": (
        "The process that judges ended with code {code}.\n{reason}\nLog: {log}",
        "评估进程已退出，退出码 {code}。\n{reason}\n日志：{log}",
    ),
    "bench_quality.killed": (
        "The process that judges was ended by signal {signal}.\n{reason}\nLog: {log}",
        "评估进程被信号 {signal} 终止。\n{reason}\n日志：{log}",
    ),
}

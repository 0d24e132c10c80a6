"""Messages of `kt quant`."""

_EXAMPLES = (
    "kt quant\nkt quant ./Qwen3-30B-A3B --method moe_int4 --dry-run\nkt quant ./Qwen3-30B-A3B --method int4 --group 64 "
    "--override 'layers\\.0\\.=keep' --override 'down_proj=int8'\nkt quant demo --method Q4_K_M --out ./demo-q4"
)

MESSAGES: dict[str, tuple[str, str]] = {
    "quant.help": (
        "Make another precision of a model\n"
        "The output is a Hugging Face folder that compressed-tensors reads (int4, int8, fp8, mxfp4, bf16; moe_int4 and moe_int8 take "
        "routed experts only) or a GGUF file. Layers are written one at a time; the same command goes on after an interruption. "
        "Without a model or method it asks.",
        "生成模型的另一种精度\n"
        "输出为 compressed-tensors 可读的 Hugging Face 文件夹（int4、int8、fp8、mxfp4、bf16；moe_int4 与 moe_int8 仅处理路由专家）"
        "或 GGUF 文件。逐层写出；中断后再次运行同一命令会继续。未给出模型或方法时会询问。",
    ),
    "quant.examples": (_EXAMPLES, _EXAMPLES),
    "quant.method": (
        "int4, int8, fp8, mxfp4, bf16, moe_int4, moe_int8, or for a GGUF file Q4_K_M, Q5_K_M, IQ4_K, Q4_1, Q6_K, Q8_0, GGUF_BF16; default: asked for",
        "int4、int8、fp8、mxfp4、bf16、moe_int4、moe_int8；GGUF 文件为 Q4_K_M、Q5_K_M、IQ4_K、Q4_1、Q6_K、Q8_0、GGUF_BF16；默认询问",
    ),
    "quant.out": (
        "Folder to make; default: NAME-METHOD among the pulled models",
        "要生成的文件夹；默认为已下载模型中的 NAME-METHOD",
    ),
    "quant.group": ("Weights that share a scale, for int4; default: 32", "int4 中共用一个缩放系数的权重数；默认为 32"),
    "quant.zero_point": ("Give each group of int4 a zero point", "为 int4 的每个分组设置零点"),
    "quant.only": (
        "Weights to take: all, experts (routed ones), other (of the layers, all but those); default: all",
        "要处理的权重：all、experts（路由专家）、other（各层中除此以外的权重）；默认为 all",
    ),
    "quant.override": (
        "Another method for weights whose name a regular expression finds, as in 'down_proj=int8' or 'layers\\.0\\.=keep'; the first "
        "rule that fits holds; default: none",
        "为名称匹配正则表达式的权重另选方法，如 'down_proj=int8' 或 'layers\\.0\\.=keep'；以首条匹配的规则为准；默认没有",
    ),
    "quant.one_text": (
        "--importance and --gptq exclude each other.\nGPTQ weighs columns by its text as well.\nLeave --importance out.",
        "--importance 与 --gptq 不能同时使用。\nGPTQ 已按其文本衡量各列的重要性。\n请去掉 --importance。",
    ),
    "quant.no_gptq": (
        "--gptq does not go with {method}.\nIt rounds for: {known}.\nUse --importance with other methods.",
        "--gptq 不适用于 {method}。\n它支持：{known}。\n其他方法请使用 --importance。",
    ),
    "quant.gptq": (
        "GPTQ with this text (default: none): what a column loses, others make good. int4, int8 and their moe_ forms",
        "用该文本做 GPTQ（默认：无）：一列的误差由其他列补偿。适用于 int4、int8 及其 moe_ 形式",
    ),
    "quant.importance": (
        "Text that is run through the model first; columns of weights that it puts large numbers into are rounded with more care. The "
        "whole model is loaded for it; default: all columns count alike",
        "先让模型运行的文本；文本使其输入较大的权重列会更仔细地舍入。为此需载入整个模型；默认各列同等对待",
    ),
    "quant.threads": ("Threads to compute with; default: all cores", "计算线程数；默认为全部核心"),
    "quant.dry_run": (
        "Show sizes, time and memory, and what is there already, and make nothing",
        "显示大小、时间、内存以及已有的内容，不生成任何内容",
    ),
    "quant.yes": ("Do not ask for confirmation", "不询问确认"),
    "quant.needs": (
        "A model and --method are needed.\nThere is nobody to ask. Methods: {known}.\nExample: kt quant demo --method int4",
        "需要给出模型与 --method。\n当前无法询问用户。方法：{known}。\n示例：kt quant demo --method int4",
    ),
    "quant.only_int4": (
        "{option} is for int4 alone.\n{method} has groups and zero points as its format says.\nLeave {option} out.",
        "{option} 仅用于 int4。\n{method} 的分组与零点由其格式决定。\n请去掉 {option}。",
    ),
    "quant.column_from": ("FROM", "原格式"),
    "quant.column_to": ("TO", "新格式"),
    "quant.column_weights": ("WEIGHTS", "权重数"),
    "quant.column_before": ("BEFORE", "之前"),
    "quant.column_after": ("AFTER", "之后"),
    "quant.sums": (
        "{before} become {after} in {out}\nAbout {time} with {threads} threads, and {memory} of memory",
        "{before} 变为 {after}，位于 {out}\n使用 {threads} 个线程约需 {time}，内存 {memory}",
    ),
    "quant.ask_model": ("Which model?", "选择哪个模型？"),
    "quant.ask_path": ("GGUF file or folder:", "GGUF 文件或文件夹："),
    "quant.ask_method": ("Which precision?", "选择哪种精度？"),
    "quant.other_model": ("another file or folder", "其他文件或文件夹"),
    "quant.confirm": ("Start?", "开始？"),
    "quant.about_int4": ("4.5 bits, all layers", "4.5 位，所有层"),
    "quant.about_int8": ("8.5 bits, all layers", "8.5 位，所有层"),
    "quant.about_fp8": ("8 bits, E4M3 in blocks", "8 位，分块 E4M3"),
    "quant.about_mxfp4": ("4.25 bits, E2M1", "4.25 位，E2M1"),
    "quant.about_bf16": ("16 bits, from whatever it is", "16 位，来源格式不限"),
    "quant.about_moe_int4": ("4.5 bits, routed experts only", "4.5 位，仅路由专家"),
    "quant.about_moe_int8": ("8.5 bits, routed experts only", "8.5 位，仅路由专家"),
    "quant.about_q4_k_m": ("GGUF, about 4.8 bits", "GGUF，约 4.8 位"),
    "quant.about_q5_k_m": ("GGUF, about 5.7 bits", "GGUF，约 5.7 位"),
    "quant.about_iq4_k": (
        "GGUF, about 4.8 bits, closer than Q4_K_M; llama.cpp cannot read it, ik_llama.cpp can",
        "GGUF，约 4.8 位，比 Q4_K_M 更接近原模型；llama.cpp 无法读取，ik_llama.cpp 可以",
    ),
    "quant.about_q4_1": ("GGUF, 5 bits", "GGUF，5 位"),
    "quant.about_q6_k": ("GGUF, 6.6 bits", "GGUF，6.6 位"),
    "quant.about_q8_0": ("GGUF, 8.5 bits", "GGUF，8.5 位"),
    "quant.about_gguf_bf16": ("GGUF, 16 bits", "GGUF，16 位"),
    "quant.next": ("Run it with: kt run {name}", "运行：kt run {name}"),
    "quant.name_taken": (
        "The output is not listed as {name}.\nAnother model has that name.\nIts folder runs as well.",
        "输出未以 {name} 列出。\n该名称已属于其他模型。\n仍可直接运行其文件夹。",
    ),
    "quant.interrupted": ("Interrupted. {again}", "已中断。{again}"),
    "quant.terminated": ("Stopped by a signal. {again}", "已被信号终止。{again}"),
    "quant.goes_on": (
        "The same command goes on with what is finished.",
        "再次运行同一命令会在已完成的部分上继续。",
    ),
    "quant.begins_anew": (
        "No layer was finished: the same command begins anew.",
        "尚未完成任何一层：再次运行同一命令会重新开始。",
    ),
    "quant.would_go_on": (
        "{done} of {total} layers are finished; the command goes on with the next one.",
        "{total} 层中已完成 {done} 层；运行该命令会从下一层继续。",
    ),
    "quant.no_out": (
        "--out is empty.\nIt names the folder to make.\nGive a folder, or leave --out out: then it is NAME-METHOD among the pulled models.",
        "--out 为空。\n它指定要生成的文件夹。\n请给出文件夹，或去掉 --out：此时为已下载模型中的 NAME-METHOD。",
    ),
    "quant.ended": (
        "The process that quantises ended with code {code}.\n{reason}\n{again} Log: {log}",
        "量化进程已退出，退出码 {code}。\n{reason}\n{again}日志：{log}",
    ),
    "quant.killed": (
        "The process that quantises was ended by signal {signal}.\n{reason}\n{again} Log: {log}",
        "量化进程被信号 {signal} 终止。\n{reason}\n{again}日志：{log}",
    ),
}

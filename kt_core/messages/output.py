"""Messages of the command line's output sink."""

MESSAGES: dict[str, tuple[str, str]] = {
    "output.error": ("Error: ", "错误："),
    "output.warning": ("Warning: ", "警告："),
    "output.of": ("{done} of {total}", "{done} / {total}"),
    "output.full": (
        "The output could not be written.\nThere is no space left where it goes.\nMake room, or write it somewhere else.",
        "无法写入输出。\n目标位置已没有空间。\n请腾出空间，或写到别处。",
    ),
    "output.comma": (", ", "、"),
    "output.stage_start": ("Starting", "启动"),
    "output.stage_tokenizer": ("Reading the tokenizer", "读取分词器"),
    "output.stage_importance": ("Reading the text", "运行文本"),
    "output.stage_weights": ("Loading weights", "加载权重"),
    "output.unit_modules": ("modules", "个模块"),
    "output.stage_evaluate": ("Judging", "评估"),
    "output.unit_tokens": ("tokens", "token"),
}

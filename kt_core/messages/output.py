"""Messages of the command line's output sink."""

MESSAGES: dict[str, tuple[str, str]] = {
    "output.error": ("Error: ", "错误："),
    "output.warning": ("Warning: ", "警告："),
    "output.of": ("{done} of {total}", "{done} / {total}"),
    "output.comma": (", ", "、"),
    "output.stage_start": ("Starting", "启动"),
    "output.stage_tokenizer": ("Reading the tokenizer", "读取分词器"),
    "output.stage_weights": ("Loading weights", "加载权重"),
    "output.unit_modules": ("modules", "个模块"),
}

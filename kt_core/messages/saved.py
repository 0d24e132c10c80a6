"""Messages about kept conversations."""

MESSAGES: dict[str, tuple[str, str]] = {
    "saved.absent": (
        "There is no conversation {file}.\n\nType /load to see those that are kept.",
        "没有对话 {file}。\n\n输入 /load 查看已保存的对话。",
    ),
    "saved.bad": (
        "{file} is not a conversation.\n{reason}\nType /load to see those that are kept.",
        "{file} 不是对话文件。\n{reason}\n输入 /load 查看已保存的对话。",
    ),
    "saved.failed": (
        "{file} cannot be written.\n{reason}\nName another file: /save FILE",
        "无法写入 {file}。\n{reason}\n请换一个文件：/save 文件",
    ),
    "saved.none": (
        "No conversation is kept yet.\nOnes of kt chat are, unless chat.save is off.\nBegin one with: kt chat",
        "还没有保存的对话。\n除非关闭 chat.save，kt chat 会保存对话。\n开始对话：kt chat",
    ),
}

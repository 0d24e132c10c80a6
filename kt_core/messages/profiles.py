"""Messages about profiles of `kt run`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "profiles.absent": (
        "There is no profile @{name}.\nThere are: {known}\nkt run without arguments makes one.",
        "没有配置方案 @{name}。\n现有：{known}\n运行不带参数的 kt run 可创建方案。",
    ),
    "profiles.none": (
        "There is no profile @{name}.\nNone has been saved yet.{known}\nkt run without arguments makes one.",
        "没有配置方案 @{name}。\n尚未保存任何方案。{known}\n运行不带参数的 kt run 可创建方案。",
    ),
    "profiles.bad": (
        "The profile {file} cannot be used.\n{reason}\nMend the file, or delete it.",
        "无法使用配置方案 {file}。\n{reason}\n请修复或删除该文件。",
    ),
    "profiles.nested": ("{option} has parts; an option has one value.", "{option} 含有多个部分；选项只有一个值。"),
    "profiles.bad_name": (
        "{name!r} cannot be the name of a profile.\nIt has letters, digits, dots and dashes, 64 at most.\nChoose another name.",
        "“{name}”不能作为方案名称。\n名称由字母、数字、点和连字符组成，最多 64 个字符。\n请换一个名称。",
    ),
}

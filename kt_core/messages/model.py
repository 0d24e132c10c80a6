"""Messages of `kt model`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "model.help": ("List, download and delete models", "列出、下载和删除模型"),
    "model.examples": (
        "kt model list\nkt model pull demo\nkt model path demo\nkt model rm demo --yes",
        "kt model list\nkt model pull demo\nkt model path demo\nkt model rm demo --yes",
    ),
    "model.list_help": (
        "List the models on this disk and those that kt knows how to get",
        "列出本地的模型以及 kt 可以下载的模型",
    ),
    "model.pull_help": (
        "Download a model; an interrupted download goes on where it stopped",
        "下载模型；中断的下载会从断点继续",
    ),
    "model.path_help": ("Show where a model's files are", "显示模型文件的位置"),
    "model.rm_help": ("Delete a downloaded model", "删除已下载的模型"),
    "model.name": ("Name of the model; kt model list shows them", "模型名称；用 kt model list 查看"),
    "model.pulled_name": (
        "Name of a model on this disk; kt model list --pulled shows them",
        "本地模型的名称；用 kt model list --pulled 查看",
    ),
    "model.pulled": ("Only the models on this disk", "只列出本地的模型"),
    "model.yes": ("Do not ask", "不询问"),
    "model.confirm": ("Delete {folder} ({size})?", "删除 {folder}（{size}）？"),
    "model.removed": ("Deleted {folder}", "已删除 {folder}"),
    "model.kept": ("Nothing was deleted.", "没有删除任何内容。"),
    "model.in_use": (
        "Model {name} is in use.\nThe server at {url} runs it (process {pid}).\nStop that server first: kill {pid}",
        "模型 {name} 正在使用中。\n服务器 {url} 正在运行它（进程 {pid}）。\n请先停止该服务器：kill {pid}",
    ),
    "model.not_pulled": ("{size} to download", "待下载 {size}"),
    "model.column_name": ("NAME", "名称"),
    "model.column_size": ("SIZE", "大小"),
    "model.column_format": ("FORMAT", "格式"),
    "model.column_about": ("ABOUT", "说明"),
}

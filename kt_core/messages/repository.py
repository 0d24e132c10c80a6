"""Messages about repositories of the model hub as models of the store."""

MESSAGES: dict[str, tuple[str, str]] = {
    "repository.nothing_left": (
        "No file of {name} is left to download.\nThe patterns are: {patterns}\nSee the files with kt model pull {name} --dry-run.",
        "{name} 没有要下载的文件。\n模式为：{patterns}\n请用 kt model pull {name} --dry-run 查看文件。",
    ),
    "repository.taken": (
        "{name} cannot be put into the models folder.\n{folder} is another model, or one that kt did not download.\n"
        "Rename that folder, then try again.",
        "无法把 {name} 放入模型文件夹。\n{folder} 是另一个模型，或不是由 kt 下载的。\n请重命名该文件夹后重试。",
    ),
    "repository.wrong_content": (
        "{file} of {name} is not what it should be.\nIts hash differs from the published one, or from the one that was taken at first.\nTry again; it is fetched anew.",
        "{name} 的 {file} 内容不符。\n其哈希值与公布的、或当初取得的不同。\n请重试，将重新下载该文件。",
    ),
}

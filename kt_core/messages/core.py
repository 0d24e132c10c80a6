"""Messages shared by all rooms."""

MESSAGES: dict[str, tuple[str, str]] = {
    "core.no_home": (
        "There is no home folder to keep files in.\nHOME is not set, and the user id has no account on this machine.\n"
        "Set HOME, or {variable}, to a folder that may be written to.",
        "没有可存放文件的主目录。\n未设置 HOME，且当前用户 ID 在本机没有账户。\n请将 HOME 或 {variable} 设为可写的文件夹。",
    ),
    "core.remote": ("{what}\n{why}\n{next}", "{what}\n{why}\n{next}"),
}

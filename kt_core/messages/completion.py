"""Messages of `kt completion`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "completion.help": (
        "Completion on Tab: print a shell's script, or put it where the shell looks",
        "Tab 补全：输出 shell 的脚本，或放到 shell 会读取的位置",
    ),
    "completion.bash_help": ("Print the script for bash", "输出 bash 的脚本"),
    "completion.zsh_help": ("Print the script for zsh", "输出 zsh 的脚本"),
    "completion.fish_help": ("Print the script for fish", "输出 fish 的脚本"),
    "completion.print_examples": ("kt completion bash > kt.bash", "kt completion bash > kt.bash"),
    "completion.install_help": (
        "Put the script where the shell looks, and say where\n"
        "For zsh, four marked lines in .zshrc load it; bash needs the package bash-completion, or sources the file itself.",
        "把脚本放到 shell 会读取的位置，并说明位置\n"
        "zsh 还会在 .zshrc 中加入四行带标记的内容来加载；bash 需要 bash-completion 软件包，否则请自行 source 该文件。",
    ),
    "completion.uninstall_help": ("Take away what install wrote", "删除 install 写入的内容"),
    "completion.examples": (
        "kt completion install\nkt completion install zsh --dry-run\nkt completion uninstall",
        "kt completion install\nkt completion install zsh --dry-run\nkt completion uninstall",
    ),
    "completion.shell": (
        "bash, zsh or fish; default: the shell that SHELL names",
        "bash、zsh 或 fish；默认为 SHELL 所指的 shell",
    ),
    "completion.dry_run": ("Show what would be written or taken away", "只显示将写入或删除的内容"),
    "completion.unknown": (
        "There is no completion for {shell!r}.\nThere is one for: {shells}\nSee: kt completion install --help",
        "没有“{shell}”的补全脚本。\n可用的有：{shells}\n参见：kt completion install --help",
    ),
    "completion.which": (
        "Which shell is meant?\nSHELL does not name one of: {shells}\nkt completion install bash",
        "请指定 shell。\nSHELL 未指明以下之一：{shells}\nkt completion install bash",
    ),
    "completion.not_ours": (
        "{file} is not a script of kt's.\nIt is left as it is.\nMove it away, then try again.",
        "{file} 不是 kt 的脚本。\n已保持原样。\n请先将其移走，再重试。",
    ),
    "completion.unreadable": (
        "{file} cannot be read.\n{reason}\nkt completion --help",
        "无法读取 {file}。\n{reason}\nkt completion --help",
    ),
    "completion.wrote": ("Wrote {file}", "已写入 {file}"),
    "completion.would_write": ("Would write {file}", "将写入 {file}"),
    "completion.removed": ("Took kt's part out of {file}", "已从 {file} 移除 kt 的部分"),
    "completion.would_remove": ("Would take kt's part out of {file}", "将从 {file} 移除 kt 的部分"),
    "completion.current": ("{file} is as it should be", "{file} 无需更改"),
    "completion.absent": ("Nothing of kt's is in {file}", "{file} 中没有 kt 的内容"),
    "completion.new_shell": ("A new {shell} completes kt on Tab.", "新开的 {shell} 即可用 Tab 补全 kt。"),
    "completion.no_framework": (
        "bash-completion was not found, and without it bash does not read that file.\n"
        "Install the package bash-completion, or add this line to ~/.bashrc: source {file}",
        "未找到 bash-completion，没有它 bash 不会读取该文件。\n"
        "请安装软件包 bash-completion，或在 ~/.bashrc 中加入：source {file}",
    ),
}

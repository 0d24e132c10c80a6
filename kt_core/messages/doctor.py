"""Messages of `kt doctor`."""

MESSAGES: dict[str, tuple[str, str]] = {
    "doctor.help": (
        "Check the machine and the installation\n"
        "Works when packages are missing or broken; ends with code 6 when it finds an error.",
        "检查本机与安装情况\n即使软件包缺失或损坏也能运行；发现错误时退出码为 6。",
    ),
    "doctor.examples": ("kt doctor\nkt doctor --json", "kt doctor\nkt doctor --json"),
    "doctor.sysroot": (
        "Folder with another machine's /proc and /sys to read; default: /",
        "读取另一台机器的 /proc 与 /sys 所在的文件夹；默认为 /",
    ),
    "doctor.no_sysroot": (
        "There is no folder {folder}.\n\nGive a folder that holds proc and sys.",
        "文件夹 {folder} 不存在。\n\n请给出含有 proc 与 sys 的文件夹。",
    ),
    "doctor.checking": ("Checking, and importing packages", "正在检查并导入软件包"),
    "doctor.ok": ("ok", "正常"),
    "doctor.warn": ("warn", "警告"),
    "doctor.error": ("error", "错误"),
    "doctor.counts": ("{ok} ok, {warn} warnings, {error} errors", "正常 {ok} 项，警告 {warn} 项，错误 {error} 项"),
    "doctor.python_range": (
        "kt needs Python {wanted}; make a virtual environment with such a version",
        "kt 需要 Python {wanted}；请用该版本创建虚拟环境",
    ),
    "doctor.report_it": (
        "Run KT_DEBUG=1 kt run NAME --dry-run and report what it shows",
        "请运行 KT_DEBUG=1 kt run NAME --dry-run 并报告其输出",
    ),
    "doctor.architecture": (
        "kt runs on x86_64 and aarch64 processors",
        "kt 只能在 x86_64 与 aarch64 处理器上运行",
    ),
    "doctor.cpu": (
        "{model}, {cores} cores, {threads} threads, {allowed} usable here, NUMA nodes: {nodes}",
        "{model}，{cores} 核，{threads} 线程，可用 {allowed} 个，NUMA 节点：{nodes}",
    ),
    "doctor.memory": ("{available} available of {total}", "可用 {available}，共 {total}"),
    "doctor.low_memory": (
        "Close programs that use much memory, or run a smaller model",
        "请关闭占用内存较多的程序，或运行更小的模型",
    ),
    "doctor.no_gpu": ("none found; models run on the CPU", "未发现；模型在 CPU 上运行"),
    "doctor.no_profile": (
        "not measured; kt microbench ceilings does it, and plans then predict speed",
        "尚未测量；可运行 kt microbench ceilings，此后计划会预测速度",
    ),
    "doctor.profile": (
        "measured {when}: {rate} GB/s read from memory, threads: {threads}",
        "{when}测量：{threads} 个线程读取内存 {rate} GB/s",
    ),
    "doctor.today": ("today", "今天"),
    "doctor.days_ago": ("{days} days ago", "{days} 天前"),
    "doctor.other_profile": (
        "measured {when} on other hardware, so it is not used",
        "{when}在其他硬件上测量，因此不会使用",
    ),
    "doctor.bad_profile": ("{file} cannot be read by this version", "此版本无法读取 {file}"),
    "doctor.measure": ("Measure again: kt microbench ceilings", "请重新测量：kt microbench ceilings"),
    "doctor.not_a_package": (
        "kt runs from a folder and is not installed, so the versions it needs are not on record",
        "kt 直接从文件夹运行而未安装，因此没有所需版本的记录",
    ),
    "doctor.install_kt": ("pip install -e .", "pip install -e ."),
    "doctor.absent": ("absent", "未安装"),
    "doctor.out_of_range": ("{version} is outside {wanted}", "{version} 不在 {wanted} 范围内"),
    "doctor.install": ("pip install '{requirement}'", "pip install '{requirement}'"),
    "doctor.packages_ok": ("{count} required packages, all within their ranges", "{count} 个必需的软件包均符合要求"),
    "doctor.import_fails": (
        "{version} is present but fails to import: {reason}",
        "{version} 已安装但无法导入：{reason}",
    ),
    "doctor.reinstall": (
        "pip install --force-reinstall '{requirement}'",
        "pip install --force-reinstall '{requirement}'",
    ),
    "doctor.extension_absent": ("the native extension is not built", "原生扩展尚未构建"),
    "doctor.extension_fails": ("present but fails to load: {reason}", "存在但无法加载：{reason}"),
    "doctor.build_kt": (
        "Build it again: pip install --force-reinstall --no-deps -e .",
        "重新构建：pip install --force-reinstall --no-deps -e .",
    ),
    "doctor.kernels": (
        "{chosen} chosen; runnable: {runnable}; not here, for want of: {absent}",
        "选用 {chosen}；可运行：{runnable}；不可用（缺少）：{absent}",
    ),
    "doctor.scalar_only": (
        "Only the slow plain kernels run here; unset KT_KERNEL_CPU_VARIANT if it is set",
        "这里只能运行较慢的普通内核；若设置了 KT_KERNEL_CPU_VARIANT 请取消",
    ),
    "doctor.timed_out": ("no answer within {seconds} seconds", "{seconds} 秒内没有响应"),
    "doctor.killed": ("the process was killed by signal {signal}", "进程被信号 {signal} 终止"),
    "doctor.no_settings": ("defaults; there is no file", "使用默认值；没有设置文件"),
    "doctor.folder": ("{folder}, {free} free", "{folder}，剩余 {free}"),
    "doctor.not_writable": ("{folder} is not writable for this user", "当前用户无权写入 {folder}"),
    "doctor.not_a_folder": ("{file} is a file, not a folder: move it away", "{file} 是文件而不是文件夹：请将其移走"),
    "doctor.low_disk": (
        "Free some space, or choose another folder: kt config set paths.models DIR",
        "请释放空间，或选择其他文件夹：kt config set paths.models DIR",
    ),
    "doctor.server": ("{model} {url} (process {pid})", "{model} {url}（进程 {pid}）"),
    "doctor.no_servers": ("none running", "没有运行中的服务器"),
}

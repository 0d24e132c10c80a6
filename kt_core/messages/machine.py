"""Messages of the machine room."""

MESSAGES: dict[str, tuple[str, str]] = {
    "machine.no_cpuinfo": (
        "/proc/cpuinfo cannot be read: processor name and features are unknown",
        "无法读取 /proc/cpuinfo：处理器型号和指令集未知",
    ),
    "machine.no_topology": (
        "/sys has no CPU topology: physical cores are guessed",
        "/sys 中没有 CPU 拓扑：物理核数为估计值",
    ),
    "machine.no_meminfo": (
        "/proc/meminfo cannot be read: the memory size is unknown",
        "无法读取 /proc/meminfo：内存大小未知",
    ),
    "machine.bad_list": ("{path} is not a CPU list: {text}", "{path} 不是 CPU 列表：{text}"),
    "machine.no_gpu_query": (
        "nvidia-smi failed, GPUs are not used: {reason}",
        "nvidia-smi 失败，不使用 GPU：{reason}",
    ),
    "machine.limit_affinity": (
        "the process may run on {limit} of {cpus} CPUs (affinity)",
        "进程只能使用 {cpus} 个 CPU 中的 {limit} 个（亲和性）",
    ),
    "machine.limit_quota": (
        "the container's quota is {limit} of {cpus} CPUs",
        "容器的 CPU 配额为 {limit}（共 {cpus} 个 CPU）",
    ),
    "machine.limit_cores": (
        "one thread for each of {limit} usable physical cores ({cpus} CPUs)",
        "{limit} 个可用物理核各一个线程（{cpus} 个 CPU）",
    ),
    "machine.limit_fast_cores": (
        "one thread for each of {limit} performance cores ({cpus} CPUs)",
        "{limit} 个性能核各一个线程（{cpus} 个 CPU）",
    ),
}

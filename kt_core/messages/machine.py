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
    "machine.amx_refused": (
        "the CPU has AMX, but the operating system does not let it be used (an old kernel or a sandbox)",
        "CPU 有 AMX，但操作系统不允许使用（内核过旧或处于沙箱中）",
    ),
    "machine.hidden": (
        "{model} has {features}, but this virtual machine does not show it: give it the host's CPU model (-cpu host)",
        "{model} 支持 {features}，但此虚拟机没有显示：请让虚拟机使用主机的 CPU 型号（-cpu host）",
    ),
    "machine.no_cpus_left": (
        "affinity and cpuset have no online CPU in common: all online ones are taken",
        "亲和性与 cpuset 没有共同的在线 CPU：改用所有在线 CPU",
    ),
    "machine.no_node": (
        "no NUMA node lists CPUs {cpus}: they are counted to node {node}",
        "没有 NUMA 节点列出 CPU {cpus}：计入节点 {node}",
    ),
    "machine.limit_online": ("{limit} CPUs are online", "在线 CPU 共 {limit} 个"),
    "machine.limit_cpuset": (
        "the control group's cpuset has {limit} of {cpus} CPUs",
        "控制组的 cpuset 含 {cpus} 个 CPU 中的 {limit} 个",
    ),
    "machine.several_named": (
        "Several are called {name}.\nThey are: {names}.\nName one of them.",
        "有多个名为 {name} 的硬件。\n包括：{names}。\n请指明其中一个。",
    ),
    "machine.unknown_cpu": (
        "kt has no figures of a CPU called {name}.\nIt has those of: {names}.\nTake the nearest one of them.",
        "kt 没有名为 {name} 的 CPU 的数据。\n已有：{names}。\n请选择最接近的一个。",
    ),
    "machine.unknown_cpu_near": (
        "kt has no figures of a CPU called {name}.\nNames that are near: {names}.\nTake one of them.",
        "kt 没有名为 {name} 的 CPU 的数据。\n相近的名称：{names}。\n请选择其中一个。",
    ),
    "machine.unknown_gpu": (
        "kt has no figures of a GPU called {name}.\nIt has those of: {names}.\nTake the nearest one of them, or leave gpu= out.",
        "kt 没有名为 {name} 的 GPU 的数据。\n已有：{names}。\n请选择最接近的一个，或不写 gpu=。",
    ),
    "machine.unknown_gpu_near": (
        "kt has no figures of a GPU called {name}.\nNames that are near: {names}.\nTake one of them, or leave gpu= out.",
        "kt 没有名为 {name} 的 GPU 的数据。\n相近的名称：{names}。\n请选择其中一个，或不写 gpu=。",
    ),
    "machine.simulated_part": (
        "--simulate cannot read {part!r}.\nIt takes parts with commas between them, each of {keys} once, as in cpu=xeon-6454s:2,ram=64GiB.\n"
        "Write it like that.",
        "--simulate 无法理解“{part}”。\n各部分以逗号分隔，{keys} 各至多一次，例如 cpu=xeon-6454s:2,ram=64GiB。\n请按此格式书写。",
    ),
    "machine.simulated_count": (
        "--simulate cannot read the count in {part}.\nIt is a whole number from 1 behind the name, as in cpu=xeon-6454s:2.\nWrite it like that, or leave it out for 1.",
        "--simulate 无法理解 {part} 中的数量。\n数量为名称后不小于 1 的整数，例如 cpu=xeon-6454s:2。\n请按此书写，省略则为 1。",
    ),
    "machine.simulated_size": (
        "--simulate cannot read the size in {part}.\nA size is like 64GiB or 2TB.\nWrite it like that.",
        "--simulate 无法理解 {part} 中的大小。\n大小形如 64GiB 或 2TB。\n请按此书写。",
    ),
    "machine.simulated_sockets": (
        "No machine has {sockets} sockets with {name}.\nThere are at most {most}.\nGive fewer.",
        "没有装 {sockets} 路 {name} 的机器。\n最多 {most} 路。\n请减少路数。",
    ),
    "machine.simulated_gpus": (
        "{count} GPUs are too many for one machine.\nkt takes {most} at most.\nGive fewer.",
        "一台机器放不下 {count} 块 GPU。\n最多 {most} 块。\n请减少数量。",
    ),
    "machine.memory_ram": ("all of the memory, {size}", "全部内存 {size}"),
    "machine.memory_cgroup": (
        "the control group may use {size} (memory: {ram})",
        "控制组最多可用 {size}（内存：{ram}）",
    ),
    "machine.memory_nodes": (
        "the NUMA nodes that the process may use have {size} (memory: {ram})",
        "进程可用的 NUMA 节点共有 {size}（内存：{ram}）",
    ),
    "machine.memory_unknown": ("the system does not say", "系统没有给出"),
    "machine.no_gpu_driver": (
        "{count} NVIDIA GPUs are on the PCI bus, but not for this process: no driver, or a container started without them",
        "PCI 总线上有 {count} 块 NVIDIA GPU，但本进程无法使用：没有驱动，或容器启动时未分配 GPU",
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

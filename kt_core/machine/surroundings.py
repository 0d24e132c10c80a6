"""What the process runs in: a virtual machine, a container, WSL."""

import re

from kt_core.machine.cpuinfo import AMX, CpuInfo
from kt_core.machine.sysfiles import Tree

_VENDORS = (  # a word of the firmware's names -> the hypervisor
    ("VMware", "vmware"), ("VirtualBox", "virtualbox"), ("Xen", "xen"), ("Microsoft Corporation", "hyperv"),
    ("QEMU", "kvm"), ("KVM", "kvm"), ("Amazon EC2", "ec2"), ("Google", "gce"), ("OpenStack", "kvm"), ("Alibaba", "kvm"),
    ("Tencent", "kvm"), ("bochs", "kvm"),
)  # fmt: skip
_CONTAINERS = (  # in the names of control groups -> the container
    (r"/kubepods|kubelet", "kubernetes"), (r"/docker[-/]|/system\.slice/docker", "docker"), (r"/lxc[./]", "lxc"),
    (r"/libpod", "podman"),
)  # fmt: skip
_TILED = ("sapphire_rapids", "emerald_rapids", "granite_rapids")


def read_surroundings(tree: Tree, info: CpuInfo) -> tuple[str, ...]:
    """Names such as "vm:kvm", "wsl", "docker". Notes CPU features that a virtual machine seems to hide."""
    found = []
    version = tree.text("/proc/version", 4096) or ""
    if "microsoft" in version.casefold():
        found.append("wsl")
    elif hypervisor := _hypervisor(tree, info):
        found.append(f"vm:{hypervisor}")
    found += _containers(tree)
    if found and "hypervisor" in info.flags:
        _hidden(tree, info)
    return tuple(found)


def _hypervisor(tree: Tree, info: CpuInfo) -> str:
    """Its name, "unknown" where only the CPU's flag tells; empty on bare metal."""
    names = " ".join(tree.text(f"/sys/class/dmi/id/{name}", 256) or "" for name in ("sys_vendor", "product_name"))
    known = next((name for word, name in _VENDORS if word in names), "")
    kind = tree.text("/sys/hypervisor/type", 64) or ""
    if "hypervisor" in info.flags:
        return known or (kind if kind.isalnum() else "") or "unknown"
    return known if known == "kvm" and not info.flags & {"lm", "fpu"} else ""  # ARM has no such flag


def _containers(tree: Tree) -> list[str]:
    groups = tree.text("/proc/self/cgroup") or ""
    named = [name for pattern, name in _CONTAINERS if re.search(pattern, groups)]
    if tree.has("/.dockerenv") and "docker" not in named and "kubernetes" not in named:
        named.append("docker")
    if tree.has("/run/.containerenv") and "podman" not in named:
        named.append("podman")
    # Processes in LXC see the variable that its init was started with; others may not read it.
    match = re.search(r"(?:^|\0)container=([a-z-]+)", tree.text("/proc/1/environ", 1 << 16) or "")
    if match and match[1] not in named and not named:
        named.append(match[1])
    if not named and (tree.text("/run/systemd/container", 64) or "").isalpha():
        named.append(tree.text("/run/systemd/container", 64) or "")
    return named


def _hidden(tree: Tree, info: CpuInfo) -> None:
    """A note where the chip is known to do what its flags do not show."""
    if info.generation in _TILED and not info.flags & set(AMX):
        tree.note("machine.hidden", model=info.model, features="AMX")
    elif info.architecture == "x86_64" and "avx2" not in info.flags:
        tree.note("machine.hidden", model=info.model, features="AVX2")

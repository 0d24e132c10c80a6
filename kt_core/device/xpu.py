"""Intel GPUs. Nobody has run this yet: what torch's module has under the same names is used, and no graphs."""

from kt_core.device.base import Device


class Own(Device):
    kind = "xpu"

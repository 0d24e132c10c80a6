"""Several processes of a run, as a YAML file of accelerate describes them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kt_core import paths
from kt_core.errors import BadData, NotFound, UsageError
from kt_core.types import Machine


@dataclass(frozen=True)
class Launcher:
    """`settings` is what accelerate reads; `kt_config` stood in the same file, as older recipes have it."""

    settings: dict[str, Any]
    kt_config: dict[str, Any]

    @property
    def processes(self) -> int:
        return int(self.settings.get("num_processes") or 1)

    @property
    def gpu(self) -> bool:
        return not self.settings.get("use_cpu", False)

    def words(self, folder: Path) -> list[str]:
        """The command line, up to the settings of the run; writes accelerate's file into `folder`."""
        file = folder / "accelerate.yaml"
        file.write_text(yaml.safe_dump(self.settings))
        launch = ["-m", "accelerate.commands.launch", "--main_process_port", "0", "--config_file", str(file)]
        return [sys.executable, *launch, "-m", "kt_core.train"]


def read(file: Path, machine: Machine) -> Launcher:
    """Raises NotFound, BadData for a file that is not a YAML mapping, UsageError for more processes than GPUs."""
    try:
        found = yaml.safe_load(paths.text(file))
    except FileNotFoundError:
        raise NotFound("train.no_accelerate", file=file) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadData("train.bad_yaml", file=file, reason=" ".join(str(error).split())) from None
    if not isinstance(found, dict):
        raise BadData("train.bad_yaml", file=file, reason=type(found).__name__)
    launcher = Launcher({k: v for k, v in found.items() if k != "kt_config"}, dict(found.get("kt_config") or {}))
    here = int(launcher.settings.get("num_machines") or 1) == 1
    if launcher.gpu and here and launcher.processes > len(machine.gpus):
        raise UsageError("train.few_gpus", processes=launcher.processes, gpus=len(machine.gpus))
    return launcher

"""`kt version`: what is installed, read from package metadata so that nothing slow is imported."""

import platform
from importlib import metadata

from kt_cli import output
from kt_cli.help import Command, new_app
from kt_core.messages import t

PACKAGES = {"kt": "kt-cli", "torch": "torch", "transformers": "transformers"}

app = new_app("cli.version_help")


@app.command(cls=Command, help="cli.version_help")
def show() -> None:
    found = {name: installed(package) for name, package in PACKAGES.items()}
    versions = {"kt": found.pop("kt"), "python": platform.python_version(), **found}
    rows = [(name, version or t("cli.not_installed")) for name, version in versions.items()]
    output.result(versions, lambda: output.table(rows), names=[version for _, version in rows])


def installed(package: str) -> str | None:
    """The installed version of a distribution, None when it is absent or its record is damaged."""
    try:
        return metadata.version(package) or None
    except metadata.PackageNotFoundError:
        return None

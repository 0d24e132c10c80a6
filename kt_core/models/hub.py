"""Downloads files from the model hub; run as a child process, so that a hang can be ended.

`python -m kt_core.models.hub REPO REVISION FOLDER FILE...` puts the files into FOLDER. An unfinished FILE.part stays there
and the next call asks for the rest: huggingface_hub 2 itself starts anew. Endpoint, token and offline
mode are huggingface_hub's. One line on standard error says what went wrong; the exit code is then 1.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0  # between two pieces
_CHUNK = 1 << 20


def download(repo: str, revision: str, folder: Path, files: Sequence[str]) -> None:
    """Raises OSError or httpx.HTTPError; whether the content is right is for the caller to check."""
    import httpx
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise OSError("HF_HUB_OFFLINE is set")
    headers = {"Accept-Encoding": "identity"}
    if token := get_token():
        headers["Authorization"] = f"Bearer {token}"
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    with httpx.Client(headers=headers, timeout=timeout, follow_redirects=True) as client:
        for file in files:
            _download(client, repo, revision, folder, file)


def _download(client: "httpx.Client", repo: str, revision: str, folder: Path, file: str) -> None:
    import httpx
    from huggingface_hub import hf_hub_url

    target = folder / Path(file).name
    part = target.with_name(f"{target.name}.part")
    start = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={start}-"} if start else {}
    with client.stream("GET", hf_hub_url(repo, file, revision=revision), headers=headers) as answer:
        if not (start and answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE):  # else nothing is left
            answer.raise_for_status()
            with part.open("ab" if answer.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as out:
                for chunk in answer.iter_bytes(_CHUNK):
                    out.write(chunk)
    part.replace(target)


def main() -> int:
    try:
        download(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever the client library raises is one line for the parent
        sys.stderr.write(" ".join(f"{type(error).__name__}: {error}".split()) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

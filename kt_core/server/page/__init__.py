"""GET /: the web page, for the people at a browser. Its files are read once and go out as they are."""

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

router = APIRouter()

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in Path(__file__).parent.iterdir()
    if path.suffix in _TYPES
}
# The page shows what a model wrote. Should markup of it ever get into the document, it still could not run a script,
# load anything, send anything elsewhere, or be laid under another site's page.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # another version of the server may answer here tomorrow
}


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def page(name: str = "page.html") -> Response:
    """Open to everybody, as it holds no secret: what it asks for needs the key. Raises HTTPException 404."""
    if name not in _FILES:
        raise HTTPException(404, "Not Found")
    content, kind = _FILES[name]
    return Response(content, media_type=kind, headers=_HEADERS)

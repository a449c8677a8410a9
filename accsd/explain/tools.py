"""What nodes offer as tools, in words."""

from collections.abc import Sequence

from accsd.db.tools import ToolOffer
from accsd.errors import InvalidValue
from accsd.model.tool import ToolDef


def offer_state(offer: ToolOffer, known: Sequence[ToolDef]) -> str:
    """What became of an offer, in words. `known` are all versions of tools, the newest first."""
    try:
        wanted = offer.tool()
    except InvalidValue as error:
        return str(error)
    newest = next((tool for tool in known if tool.name == wanted.name), None)
    if newest is None:
        return "not accepted"
    if newest.document() != wanted.document():
        return f"differs from version {newest.version}"
    return f"accepted as version {newest.version}" + ("" if newest.is_active else ", which is retired")

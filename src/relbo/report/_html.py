"""HTML by function calls: what is not marked as markup is escaped."""

from html import escape


class Markup(str):
    """Text that is HTML already."""


Content = str | None | list["Content"]
"""Plain text, markup, nothing, or several of these."""


def element(tag: str, *content: Content, **attributes: str | int | None) -> Markup:
    """`<tag attribute="value">content</tag>`; attributes that are `None` are left out.

    A trailing underscore lets Python's own words be attributes, and the others stand for
    hyphens: `class_`, `aria_label`.
    """
    return Markup(f"<{tag}{_attributes(attributes)}>{joined(*content)}</{tag}>")


def void(tag: str, **attributes: str | int | None) -> Markup:
    """An element without content or end, such as `<img>`."""
    return Markup(f"<{tag}{_attributes(attributes)}>")


def joined(*content: Content) -> Markup:
    """Everything in a row, escaped where it is not markup."""
    return Markup("".join(map(_text, content)))


def _text(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, list):
        return joined(*content)
    return content if isinstance(content, Markup) else escape(content)


def _attributes(attributes: dict[str, str | int | None]) -> str:
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )

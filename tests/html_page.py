"""A page's elements and text as a browser reads them, and the texts in its figures."""

from html.parser import HTMLParser
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """A page's elements with their attributes, and its text with single spaces."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data) -> None:
        self.text += data + " "

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def values(self, *names: str) -> list[str]:
        """Return the values of these attributes of all elements."""
        return [
            attributes[name]
            for _, attributes in self.elements
            for name in names
            if attributes.get(name)
        ]

    @property
    def links(self) -> list[str]:
        return self.values("href", "src", "xlink:href")


def figures(html: str) -> list[ElementTree.Element]:
    parts = html.split("<svg")[1:]
    return [ElementTree.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in parts]


def figure_texts(html: str) -> list[str]:
    """Return the texts of all figures of a page, or of an SVG alone."""
    nodes = [node for figure in figures(html) for node in figure.iter(f"{SVG}text")]
    return ["".join(node.itertext()) for node in nodes]

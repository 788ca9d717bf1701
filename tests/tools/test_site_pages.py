"""Pages of the site that are files of the source: what their links become."""

from __future__ import annotations

import re

import pytest
import yaml

from tools.site_pages import PAGES, ROOT, site_page


def test_links_of_the_readme_lead_to_pages_of_the_site() -> None:
    page = site_page("quickstart.md")
    assert "[The tutorial](tutorial.md)" in page
    assert "[ARCHITECTURE.md](architecture.md)" in page
    assert "](docs/" not in page


def test_what_is_no_page_is_named_by_its_path() -> None:
    page = site_page("quickstart.md")
    assert "KuaiRand (`examples/kuairand/README.md`)" in page
    assert "Read `examples/kuairand/app.py`" in page


@pytest.mark.parametrize("page", PAGES)
def test_every_link_that_is_left_leads_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^()\s#:]+\.md)(?:#[^()]*)?\)", site_page(page))
    assert not [link for link in links if link not in PAGES and not (ROOT / "docs" / link).exists()]


def test_every_page_is_in_the_navigation_once() -> None:
    found = re.findall(r"[\w/-]+\.md$", str(yaml.dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])), re.M)
    pages = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    assert sorted(found) == sorted(pages | set(PAGES))

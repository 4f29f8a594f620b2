"""The Markdown pages: what they link to exists, and the commands, files and packages that they name are there."""

import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from aot.cli.main import main
from research.studies.__main__ import main as studies

ROOT = Path(__file__).parents[2]
LOG = ROOT / "research" / "log"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "research").rglob("*.md")))
TODAY = [page for page in PAGES if page.parent != LOG and page.name != "CHANGELOG.md"]
"""Pages that say how things are now; the others tell of their date."""

SOURCES = (".py", ".toml", ".cc", ".h", ".j2")

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
NAMED_PATH = re.compile(r"(?:aot|docs|research|templates|tests)/[\w./*-]*\w[\w./*-]*")


CALL = r"(?:aot|python -m research\.studies) (?=[a-z])"


def name(page):
    return str(page.relative_to(ROOT))


@cache
def prose(page):
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def slug(heading):
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page):
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)}


def spans(page):
    """Return a page's inline code."""
    return re.findall(r"`([^`\n]+)`", prose(page).replace("\n", " "))


def commands(page):
    """Return the calls of `aot` and of studies in a page: lines of its code blocks, and inline code."""
    text = page.read_text(encoding="utf-8")
    line = re.compile(rf"^(?:\$ )?({CALL}.*)$", re.MULTILINE)
    lines = [call for block in FENCE.findall(text) for call in line.findall(block)]
    return lines + [span for span in spans(page) if re.match(CALL, span)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page):
    broken = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", TODAY, ids=name)
def test_every_file_that_is_named_exists(page):
    found = {span for span in spans(page) if NAMED_PATH.fullmatch(span) and not span.endswith(".gz")}
    assert [path for path in sorted(found) if not any(ROOT.glob(path.rstrip("/")))] == []


def options(group, command):
    """Return the options that a command has; None where there is no such command."""
    found = group.get_command(click.Context(group), command)
    known = [found, *getattr(found, "commands", {}).values()]
    return found and {"--help"}.union(*([*x.opts, *x.secondary_opts] for each in known for x in each.params))


@pytest.mark.parametrize("page", TODAY, ids=name)
def test_every_command_that_is_named_exists_with_its_options(page):
    wrong = []
    for call in commands(page):
        group = main if call.startswith("aot ") else studies
        words = shlex.split(re.sub(CALL, "", call), comments=True)
        used = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        known = options(group, words[0])
        if known is None or not used <= known:
            wrong.append(call)
    assert wrong == []


def test_the_pages_name_commands_and_files():
    """The tests above look at something."""
    assert sum(len(commands(page)) for page in TODAY) > 50
    assert sum(bool(NAMED_PATH.fullmatch(span)) for page in TODAY for span in spans(page)) > 50


def test_the_readme_draws_the_packages_as_they_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    ([a-z_]+) {2,}\S", text, re.MULTILINE)
    assert len(drawn) == len(set(drawn))
    assert set(drawn) == {path.name for path in (ROOT / "aot").iterdir() if any(path.glob("[!_.]*"))}


def test_every_page_of_the_log_is_in_its_index():
    linked = set(LINK.findall(prose(LOG / "README.md")))
    assert {page.name for page in LOG.glob("20*.md")} == {link for link in linked if re.match(r"20\d\d-", link)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == LOG and page.name != "README.md"], ids=name)
def test_a_page_of_the_log_begins_with_its_date(page):
    assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:10]}: ")


@pytest.mark.parametrize("folder", ["aot", "research", "templates", "tests"])
def test_a_page_that_the_code_names_exists(folder):
    """Sources of constants are pages, so that a page which moves takes what refers to it along."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.*") if path.suffix in SOURCES]
    named = {page for text in texts for page in re.findall(r"\b(?:docs|research/log)/[\w/.-]+\.(?:md|json|png)", text)}
    assert named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []

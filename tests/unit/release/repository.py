"""A small git repository to release from."""

from __future__ import annotations

import os
import subprocess

AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
DATE = "2026-11-20T10:00:00+03:00"


def git(folder, *words):
    env = os.environ | AUTHOR | {"GIT_AUTHOR_DATE": DATE, "GIT_COMMITTER_DATE": DATE, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True, text=True, env=env)
    return done.stdout.strip()


def repository(folder, files):
    """Make a repository of files by their paths; give its commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return git(folder, "rev-parse", "HEAD")

"""A folder with a virtual environment for each peer, and the model's files in the forms that they read."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from octavo.core.errors import OctavoError

INSIDE: Final = Path(__file__).parent / "inside"  # programs that run in the peers' environments
# Nothing is fetched but packages: a peer that wants to look something up elsewhere must fail, not wait.
OFFLINE: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_TOLD: Final = 800  # characters of what a failed command said


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder.

    Attributes:
        say: told what is done, as it takes minutes.
    """

    folder: Path
    say: Callable[[str], None] = field(default=lambda text: print(text, file=sys.stderr))

    def environment(self, name: str) -> Path:
        """Where a peer's environment is."""
        return self.folder / name

    def python(self, name: str) -> str:
        """The interpreter of an environment."""
        return str(self.environment(name) / "bin" / "python")

    def install(self, name: str, packages: Sequence[str], *, without: Sequence[str] = ()) -> None:
        """Make an environment with these packages; once for the same list.

        Args:
            without: taken out again afterwards: required by a package's description, but not used, or not
                there in a form that works.

        Raises:
            OctavoError: pip fails.
        """
        folder = self.environment(name)
        wanted = "\n".join([*packages, *(f"not {each}" for each in without)])
        done = folder / "installed.txt"
        if done.is_file() and done.read_text(encoding="utf-8") == wanted:
            return
        self.say(f"Installing {', '.join(packages)} into {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "bin" / "python").exists():
            self.run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        self.run([*pip, "install", "--quiet", *packages])
        if without:
            self.run([*pip, "uninstall", "--quiet", "--yes", *without])
        done.write_text(wanted, encoding="utf-8")

    def make(self, name: str, build: Callable[[Path], None]) -> Path:
        """A file or folder below ``models``, made by ``build`` unless it is there; never half of one."""
        made = self.folder / "models" / name
        if not made.exists():
            made.parent.mkdir(parents=True, exist_ok=True)
            self.say(f"Making {made}")
            partial = made.with_name(made.name + ".part")
            _remove(partial)
            build(partial)
            partial.rename(made)
        return made

    def run(self, command: Sequence[str], *, cwd: Path | None = None) -> None:
        """Run a command to its end.

        Raises:
            OctavoError: it fails; with the end of what it said.
        """
        env = {**os.environ, **OFFLINE}
        try:
            found = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)
        except OSError as error:
            raise OctavoError(f"cannot run {command[0]}: {error}") from error
        if found.returncode:
            said = (found.stderr.strip() or found.stdout.strip())[-_TOLD:]
            raise OctavoError(f"{' '.join(command[:4])} ... failed with status {found.returncode}: {said}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

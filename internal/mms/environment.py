"""Creates an environment with the requirements of an archive: environment.py DIRECTORY REQUIREMENTS.

Packages of the interpreter that runs this, which may be in an environment itself, stay importable. Those of the archive take precedence.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv

folder, requirements = sys.argv[1:]
no_pip = importlib.util.find_spec("pip") is None
venv.create(folder, with_pip=no_pip, symlinks=True)  # with pip it takes seconds longer
python = os.path.join(folder, "bin", "python3")
# -I: modules of the archive, where pip runs, must not take the place of those that it imports.
pip = [python, "-I", "-m", "pip"] if no_pip else [sys.executable, "-I", "-m", "pip", "--python", python]
own = sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder})
with open(os.path.join(own, "inherited.pth"), "w", encoding="utf-8") as file:
    file.writelines(path + "\n" for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
# Paths in the requirements are relative to the archive.
ended = subprocess.run(pip + ["install", "--no-input", "--disable-pip-version-check", "--progress-bar=off", "-r", requirements], cwd=os.path.dirname(requirements))
sys.exit(ended.returncode)

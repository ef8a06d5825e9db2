import subprocess
import sys
from pathlib import Path


def test_tables_of_images_show_the_recorded_numbers():
    script = Path(__file__).resolve().parents[2] / "scripts" / "tables.py"
    run = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert run.returncode == 0, f"{run.stdout}{run.stderr}run make tables"

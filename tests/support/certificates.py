"""Certificates of an authority that lives as long as a test, by the machine's openssl; tests that need one are
skipped where it is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PASSWORD = "of the key"


class Authority:
    """In ``directory``. ``ca``: its certificate."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl on this machine")
        self.directory, self.ca = directory, directory / "ca.pem"
        self._key = directory / "ca.key"
        self._openssl("req", "-x509", *_new_key(self._key), "-subj", "/CN=authority", "-out", self.ca, "-days", "2")

    def certificate(self, host: str, password: str = "") -> tuple[Path, Path]:
        """Certificate and key (PKCS#8), encrypted if there is a password."""
        request, certificate, key = (self.directory / f"{host}{ending}" for ending in (".csr", ".pem", ".key"))
        names = self.directory / f"{host}.names"
        names.write_text(f"subjectAltName={'IP' if host[0].isdigit() else 'DNS'}:{host}\n")
        secret = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        new_key = ["-newkey", "rsa:2048", *secret, "-keyout", key]
        self._openssl("req", *new_key, "-subj", f"/CN={host}", "-out", request)
        signed = ["-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-extfile", names]
        self._openssl("x509", "-req", *signed, "-out", certificate, "-days", "2")
        return certificate, key

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def _new_key(path: Path) -> list[object]:
    return ["-newkey", "rsa:2048", "-nodes", "-keyout", path]

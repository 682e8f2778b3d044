"""Where `serve` listens, by which names it answers, and that beyond loopback nothing is in the clear."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bernstein.seal.inside import INSIDE_RUN
from tests.helpers import bernstein
from tests.test_serve import write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.rundir import SddDir

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(120)]
TOKEN = "read-token-of-this-test"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "build.example")])
    now = datetime.datetime.now(datetime.UTC)
    names = [
        x509.DNSName("build.example"),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_path, key_path


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@contextmanager
def serve(token_file: Path, *arguments: str, **environment: str) -> Iterator[list[str]]:
    """A server on a free port; gives the lines that it prints."""
    with subprocess.Popen(
        [sys.executable, "-m", "bernstein", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "BERNSTEIN_SERVE_TOKEN_FILE": str(token_file), **environment},
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(2)]
        if "--read-only" not in arguments:
            lines.append(process.stdout.readline().rstrip("\n"))
        try:
            yield lines
        finally:
            process.terminate()


def port_of(lines: list[str]) -> int:
    port = int(lines[0].rstrip("/").rpartition(":")[2])
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            break
    return port


def ask(
    port: int, path: str, tls: ssl.SSLContext | None, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], Any]:
    """An answer: its status, its headers and its value."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    made: http.client.HTTPConnection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=tls)
    )
    try:
        made.request(method, path, headers={"Authorization": f"Bearer {TOKEN}", **named})
        response = made.getresponse()
        body = response.read()
        return response.status, dict(response.getheaders()), json.loads(body) if body else None
    finally:
        made.close()


def test_beyond_loopback_it_speaks_tls_and_answers_to_its_names(
    sdd: SddDir, certificate: tuple[Path, Path], token_file: Path
) -> None:
    write(sdd, "done", 5)
    cert, key = map(str, certificate)
    arguments = ("--host", "0.0.0.0", "--name", "Build.Example", "--cert", cert, "--key", key)
    with serve(token_file, *arguments) as lines:
        assert lines[0].startswith("https://Build.Example:")
        port = port_of(lines)
        tls = ssl.create_default_context(cafile=cert)
        status, headers, _ = ask(port, "/api/session", tls, "POST")
        assert status == 200
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(headers["set-cookie"].split("; "))
        for host, expected in (
            (f"127.0.0.1:{port}", 200),
            (f"localhost:{port}", 200),
            (f"build.example:{port}", 200),
            ("build.example", 200),
            (f"BUILD.example:{port}", 200),
            (f"0.0.0.0:{port}", 200),
            (f"other.example:{port}", 421),
            (f"build.example.evil.example:{port}", 421),
            ("", 421),
        ):
            assert ask(port, "/api/runs", tls, Host=host)[0] == expected, host
        own = f"https://127.0.0.1:{port}"
        assert ask(port, "/api/runs", tls, Origin=own)[0] == 200
        assert ask(port, "/api/runs", tls, Origin=own.replace("https", "http"))[0] == 403
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(port, "/api/runs", None)


def test_another_address_than_loopback_needs_a_certificate(
    sdd: SddDir, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    assert sdd.path
    cert, key = map(str, certificate)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for arguments, said in (
        (("--host", "0.0.0.0"), "give it a certificate: --cert FILE --key FILE"),
        (("--host", "::"), "give it a certificate"),
        (("--cert", cert), "go together: --cert FILE --key FILE"),
        (("--key", key), "go together"),
        (("--cert", str(garbage), "--key", key), "are no certificate and its key"),
        (("--cert", key, "--key", cert), "are no certificate and its key"),
        (("--cert", str(tmp_path / "none"), "--key", key), "does not exist"),
        (("--host", "build.example"), "is no IP address to listen at"),
        (("--host", "192.0.2.1", "--cert", cert, "--key", key), "port 8733 of 192.0.2.1 cannot"),
    ):
        done = bernstein("serve", *arguments)
        assert done.returncode in {1, 2}
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_read_only_takes_no_decisions_and_makes_no_token(sdd: SddDir, token_file: Path) -> None:
    write(sdd, "done", 5)
    keys = Path(os.environ["BERNSTEIN_KEYS_DIR"])
    with serve(token_file, "--read-only") as lines:
        port = port_of(lines)
        assert not any("operator" in line for line in lines)
        assert ask(port, "/api/session", None)[2] == {"decides": False, "texts": False}
        assert ask(port, "/api/runs/done/approvals", None)[0] == 403
        assert ask(port, "/api/runs/done/approvals", None, "POST")[0] == 405
    assert not (keys / "operator.token").exists()
    with serve(token_file) as lines:
        port = port_of(lines)
        path = Path(lines[2].partition("the one in ")[2])
        assert (path, path.stat().st_mode & 0o777) == (keys / "operator.token", 0o600)
        operator = path.read_text().strip()
        shown = {"Authorization": f"Bearer {operator}"}
        assert ask(port, "/api/runs/done/approvals", None, **shown)[:1] == (200,)
    path.unlink()
    with serve(token_file, BERNSTEIN_KEYRING="1") as lines:
        port = port_of(lines)
        shown = {"Authorization": f"Bearer {lines[2].rpartition(' ')[2]}"}
        assert ask(port, "/api/runs/done/approvals", None, **shown)[0] == 200
    assert not path.exists()
    path.write_text(operator)
    path.chmod(0o644)
    done = bernstein("serve", "--port", "0")
    assert (done.returncode, "chmod 600" in done.stderr) == (2, True)


def test_what_a_run_started_serves_no_decisions(sdd: SddDir, token_file: Path) -> None:
    write(sdd, "done", 5)
    done = bernstein("serve", "--port", "0", env={INSIDE_RUN: "some run"})
    assert done.returncode == 2
    assert "this process was started by a run" in done.stderr
    with serve(token_file, "--read-only", **{INSIDE_RUN: "some run"}) as lines:
        assert ask(port_of(lines), "/api/runs/done", None)[0] == 200


def test_ipv6_loopback(sdd: SddDir, token_file: Path) -> None:
    write(sdd, "done", 5)
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serve(token_file, "--host", "::1") as lines:
        assert lines[0].startswith("http://[::1]:")
        port = int(lines[0].rstrip("/").rpartition(":")[2])
        made = http.client.HTTPConnection("::1", port, timeout=20)
        for _ in range(200):
            try:
                made.connect()
            except OSError:
                time.sleep(0.05)
            else:
                break
        for host, status in ((f"[::1]:{port}", 200), ("[::1]", 200), (f"[::2]:{port}", 421)):
            headers = {"Authorization": f"Bearer {TOKEN}", "Host": host}
            made.request("GET", "/api/runs", headers=headers)
            response = made.getresponse()
            response.read()
            assert response.status == status, host
        made.close()

"""Waking a node through a provider over HTTP (A18), and what is refused on the way (SECURITY.md, outgoing calls)."""

import ssl
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from accsd import proc
from accsd.log import redact
from accsd.model import Node
from accsd.net import ready, why_refused
from accsd.power import ProviderAPI, WakeResult
from accsd.settings import ProviderSettings
from tests.support.http_servers import answering, http_answer

NODE = Node(name="gpu-1")
TOKEN = "s3cr3t-t0ken-of-the-provider"
MINUTE = timedelta(minutes=1)


def provider(port: int = 1, **given: Any) -> ProviderSettings:
    local = {"url": f"http://127.0.0.1:{port}/servers/{{ref}}/start", "allow_private": True, "token": TOKEN}
    return ProviderSettings.model_validate({**local, **given})


async def call(settings: ProviderSettings, ref: str = "studio/gpu-1") -> WakeResult:
    return await ProviderAPI(ref, {"studio": settings}).wake(NODE)


async def test_the_provider_is_asked_once_with_the_token_and_the_reference():
    async with answering(http_answer("202 Accepted", '{"state": "starting"}')) as server:
        result = await call(provider(server.port, body='{"id": "{ref}"}'))

    assert result
    assert result.output == '202 {"state": "starting"}'
    [request] = server.requests
    assert request.startswith("POST /servers/gpu-1/start HTTP/1.1\r\n")
    assert f"\r\nAuthorization: Bearer {TOKEN}\r\n" in request
    assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in request
    assert request.endswith('\r\n\r\n{"id": "gpu-1"}')


async def test_a_chunked_answer_is_read_up_to_its_first_chunk():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    async with answering(chunked) as server:
        assert (await call(provider(server.port))).output == "200 hello"


async def test_hints_before_the_answer_are_not_the_answer():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with answering(early + http_answer("200 OK", "hello")) as server:
        assert (await call(provider(server.port))).output == "200 hello"


async def test_a_port_that_there_is_not_is_a_failure_with_its_reason():
    assert "Port out of range" in ((await call(provider(99999))).error or "")


async def test_a_token_in_a_file_is_read_at_each_call_and_struck_out_of_the_logs_from_then_on(tmp_path: Path):
    path = tmp_path / "token"
    async with answering(http_answer()) as server:
        for token in ("first-token-in-a-file", "second-token-in-a-file"):
            path.write_text(f"{token}\n")
            assert await call(provider(server.port, token=None, token_file=path, authorization="PVE={token}"))
            assert f"\r\nAuthorization: PVE={token}\r\n" in server.requests[-1]
            assert token not in redact(f"it was {token}")
        path.unlink()
        gone = await call(provider(server.port, token=None, token_file=path))

    assert "can't be read" in (gone.error or "")


async def test_a_token_that_the_provider_echoes_stays_out_of_the_result():
    for body in (f"you said {TOKEN}", "x" * (1000 - len(TOKEN) // 2) + TOKEN):
        for status in ("200 OK", "403 Forbidden"):
            async with answering(http_answer(status, body)) as server:
                result = await call(provider(server.port))

            assert TOKEN[:8] not in repr(result)
            assert result.output


async def test_a_redirect_is_refused_and_not_followed():
    async with answering(http_answer("200 OK")) as elsewhere:
        there = f"Location: http://127.0.0.1:{elsewhere.port}/"
        async with answering(http_answer("302 Found", "", there)) as server:
            result = await call(provider(server.port))

    assert "redirect (302)" in (result.error or "")
    assert elsewhere.requests == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http_answer("500 Oops", "no quota"), "studio answered 500"),
        (b"", "not HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000, "not HTTP"),
        (None, "did not answer within 0.3 s"),
    ],
)
async def test_any_other_answer_is_a_failure_with_its_reason(answer: bytes | None, error: str):
    async with answering(answer) as server:
        result = await call(provider(server.port, timeout=0.3))

    assert not result
    assert error in (result.error or "")


async def test_an_answer_without_end_is_cut():
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"z" * 5_000_000) as server:
        result = await call(provider(server.port))

    assert result
    assert len(result.output) < 2000


@pytest.mark.parametrize(
    "ref",
    [
        *("studio", "other/gpu-1", "studio/", "studio/../admin", "studio/a/b", "studio/.."),
        *("studio/a?b", "studio/a%2e", "studio/a\r\nX: y"),
    ],
)
async def test_a_reference_chooses_neither_another_path_nor_a_provider_that_is_not_configured(ref: str):
    async with answering(http_answer()) as server:
        result = await call(provider(server.port), ref)

    assert not result
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/{{ref}}",
        "http://localhost:{port}/{{ref}}",
        "http://2130706433:{port}/{{ref}}",
        "http://[::1]:{port}/{{ref}}",
        "http://[::ffff:7f00:1]:{port}/{{ref}}",
    ],
)
async def test_a_private_address_is_refused_in_any_spelling_unless_it_is_allowed(url: str):
    async with answering(http_answer()) as server:
        settings = provider(url=url.format(port=server.port)).model_copy(update={"allow_private": False})
        result = await call(settings)

    assert "private address" in (result.error or "") or "hides an IPv4 address" in (result.error or "")
    assert server.requests == []


@pytest.mark.parametrize(
    ("address", "private", "always"),
    [
        ("93.184.216.34", True, True),
        ("2606:4700::1111", True, True),
        ("10.0.0.1", False, True),
        ("192.168.1.1", False, True),
        ("100.64.0.1", False, True),
        ("127.0.0.1", False, True),
        ("::1", False, True),
        ("fd12::1", False, True),
        ("fec0::1", False, True),
        ("feff::1", False, True),
        ("3fff::1", False, True),
        ("192.88.99.1", False, True),
        ("169.254.169.254", False, False),
        ("fe80::1", False, False),
        ("fe80::1%eth0", False, False),
        ("fd00:ec2::254", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
        ("::ffff:169.254.169.254", False, False),
        ("::ffff:10.0.0.1", False, False),
        ("::ffff:93.184.216.34", False, False),
        ("::169.254.169.254", False, False),
        ("64:ff9b::a9fe:a9fe", False, False),
        ("2002:a9fe:a9fe::1", False, False),
        ("2001:0:a9fe::1", False, False),
        ("0.0.0.0", False, False),
        ("::", False, False),
        ("224.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("240.0.0.1", False, False),
    ],
)
def test_each_kind_of_address_is_let_through_or_not(address: str, private: bool, always: bool):
    assert (why_refused(ip_address(address), allow_private=False) is None) == private
    assert (why_refused(ip_address(address), allow_private=True) is None) == always


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """For the name `localhost` and no other."""
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-newkey", "rsa:2048"]
    code, said = proc.run(["openssl", "req", "-x509", "-nodes", *made, *names], timeout=MINUTE)
    assert code == 0, said
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return folder / "cert.pem", context


async def test_tls_is_verified_by_the_name_of_the_url(certificate: tuple[Path, ssl.SSLContext]):
    authority, context = certificate
    asked: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    async with answering(http_answer(), tls=context) as server:

        def at(host: str, **given: Any) -> ProviderSettings:
            return provider(url=f"https://{host}:{server.port}/{{ref}}", **given)

        assert await call(at("localhost", ca_file=authority))
        assert asked == ["localhost"]
        stranger = await call(at("localhost"))
        other_name = await call(at("127.0.0.1", ca_file=authority))

    assert "certificate" in (stranger.error or "")
    assert "certificate" in (other_name.error or "")
    assert len(server.requests) == 1


async def test_certificates_are_read_once_and_anew_when_their_file_changes(
    certificate: tuple[Path, ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    authority, context = certificate
    path = tmp_path / "ca.pem"
    await ready()  # or the import of the library would be counted: it reads certificates, too
    read: list[Path | None] = []
    make = ssl.create_default_context

    def reading(*, cafile: Path | None) -> ssl.SSLContext:
        read.append(cafile)
        return make(cafile=cafile)

    monkeypatch.setattr(ssl, "create_default_context", reading)
    async with answering(http_answer(), tls=context) as server:
        settings = provider(url=f"https://localhost:{server.port}/{{ref}}", ca_file=path)
        path.write_text("none")
        assert "can't be read" in ((await call(settings)).error or "")
        path.write_bytes(authority.read_bytes())
        for _ in range(3):
            assert await call(settings)
    assert read == [path, path]

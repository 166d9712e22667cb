"""The server of the explorations: what it answers, what it refuses, and that it ends."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import fusednn as fn
from fusednn import cli
from fusednn.explore import convolution, server
from fusednn.explore.attention import Attention
from fusednn.explore.digits import Digits, Unavailable
from fusednn.explore.fields import Fields

CONVOLUTION = {
    "dims": 1, "input": [0, 0, 0, 1, 0, 1, 1, 1, 0, 0], "kernel": [1, -1, 1], "padding": 0,
    "stride": 1, "flip": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    digits = Digits(0, tmp_path_factory.mktemp("cache"))
    with server.Server(0, digits, Attention(0)) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


def send(served, method, path, body=None, headers=None, plain=False):
    """Status, headers and content of an answer; headers are sent beside the usual ones."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    try:
        if body is not None and not plain:
            headers = {"Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, body, headers or {})
        with connection.getresponse() as response:
            return response.status, response.headers, response.read()
    finally:
        connection.close()


def raw(served, data):
    """What comes back for bytes."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while more := connection.recv(1 << 16):
            received += more
    return received


def refused(answer, status, text):
    """Whether it is one line with the reason."""
    got, headers, content = answer
    assert (got, headers.get_content_type()) == (status, "text/plain"), content
    line = content.decode()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert text in line
    return True


# ---- what is served ------------------------------------------------------------------------------


def test_the_page(served):
    with urllib.request.urlopen(served.url, timeout=20) as response:
        page = response.read().decode()
        assert response.headers.get_content_type() == "text/html"
    names = ("convolution", "mirror", "rotation", "digits", "attention")
    for name in names:
        assert f'<section id="{name}"' in page
        status, headers, content = send(served, "GET", f"/{name}.js?again")
        assert (status, headers.get_content_type()) == (200, "text/javascript")
        assert b"export function start" in content
    assert send(served, "GET", "/style.css")[1].get_content_type() == "text/css"
    about = json.loads(send(served, "GET", "/about.json")[2])
    assert about["version"] == fn.__version__
    assert about["isa"] == fn.cpu_isa()
    assert about["attention"]["trained"] is False
    scripts = {f"/{name}.js" for name in (*names, "common", "main")}
    assert set(served.pages) == {"/", "/style.css", "/about.json"} | scripts


def test_every_answer_keeps_other_sites_out(served):
    for answer in (
        send(served, "GET", "/"),
        send(served, "GET", "/none"),
        send(served, "PUT", "/"),
    ):
        headers = answer[1]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_needs_nothing_from_elsewhere(served):
    for path, (_, content) in served.pages.items():
        text = content.decode()
        found = set(re.findall(r"(?:https?:)?//[\w.]+", text)) - {"http://www.w3.org"}
        comments = {one for one in found if not one.startswith("http")}
        assert found == comments, path  # "//word" is a comment of a script
        assert "@import" not in text
        assert "url(" not in text


def test_head_is_get_without_content(served):
    status, headers, content = send(served, "HEAD", "/style.css")
    assert (status, content) == (200, b"")
    assert int(headers["Content-Length"]) == len(served.pages["/style.css"][1])


def test_computing(served):
    status, headers, content = send(served, "POST", "/api/convolution", json.dumps(CONVOLUTION))
    assert (status, headers.get_content_type()) == (200, "application/json")
    found = json.loads(content)
    assert found["output"] == [[0, 1, -1, 2, 0, 1, 0, 1]]
    assert found == convolution.compute(Fields(CONVOLUTION))
    assert send(served, "POST", "/api/convolution?x=1", json.dumps(CONVOLUTION))[2] == content


def test_localhost_and_the_own_origin_are_welcome(served):
    for name in ("127.0.0.1", "localhost", "LOCALHOST"):
        host = f"{name}:{served.port}"
        headers = {"Host": host, "Origin": f"http://{host}"}
        answer = send(served, "POST", "/api/convolution", json.dumps(CONVOLUTION), headers)
        assert answer[0] == 200


def test_many_at_once(served):
    requests = [
        ("convolution", CONVOLUTION),
        ("mirror", {
            "dims": 1, "input": [0, 1, 0, 0], "kernel": [1, 2], "padding": 0, "combine": "max",
            "axis": "horizontal", "flip": "horizontal",
        }),
        ("rotation", {"image": [[1, 0, 0], [1, 0, 0], [1, 1, 0]], "angle": 45, "network": "random",
                      "weights": 3}),
        ("attention", {"text": "a dog and a man", "causal": True, "positions": True}),
    ]  # fmt: skip

    def one(request):
        name, fields = request
        return send(served, "POST", f"/api/{name}", json.dumps(fields))

    expected = [one(request) for request in requests]
    assert [answer[0] for answer in expected] == [200] * 4
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, requests * 15))
    assert [answer[2] for answer in found] == [answer[2] for answer in expected] * 15


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("", "the request is not JSON"),
        ("{", "the request is not JSON"),
        ("{'dims': 1}", "the request is not JSON"),
        (b"\xff\xfe\x00", "the request is not JSON"),
        ('{"dims": NaN}', "NaN is no number in JSON"),
        ('{"dims": -Infinity}', "-Infinity is no number in JSON"),
        ("1" * 5000, "the request is not JSON"),
        ("[" * 100000, "the request is nested too deeply"),
        ('{"a":' * 20000, "the request is nested too deeply"),
        ("[]", "the request is a list, expected an object"),
        ("null", "the request is null, expected an object"),
        ("{}", "dims is missing"),
        (json.dumps({**CONVOLUTION, "dims": "1"}), "dims is '1', expected a whole number"),
        (json.dumps({**CONVOLUTION, "input": [[1], [1, 2]], "dims": 2}), "input[1] has 2 numbers"),
        (json.dumps({**CONVOLUTION, "extra": 1}), "unknown field 'extra'"),
        (json.dumps({**CONVOLUTION, "kernel": [1] * 9, "input": [1]}), "does not fit"),
        ('{"dims": 1, "input": [1e999]}', "input[0] is too large"),
    ],
)
def test_bad_requests(served, body, text):
    assert refused(send(served, "POST", "/api/convolution", body), 400, text)


def test_every_exploration_refuses(served):
    for name in ("convolution", "mirror", "rotation", "digits", "attention"):
        assert refused(send(served, "POST", f"/api/{name}", '{"nonsense": 1}'), 400, "is missing")


@pytest.mark.parametrize(
    "path",
    [
        "/none", "/api", "/api/", "/api/none", "/index.html", "/server.py", "/page/style.css",
        "/./style.css", "/../style.css", "/../server.py", "/../../../../etc/passwd", "*",
        "/..%2f..%2fserver.py", "/%2e%2e/server.py", "/..\\server.py", "/style.css/", "/about",
        "/style.css;x", "/style.css%00", "style.css", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_nothing_but_the_page(served, path):
    for method, body in (("GET", None), ("POST", "{}"), ("DELETE", None)):
        assert refused(send(served, method, path, body), 404, "there is nothing at this address")


def test_methods(served):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for path, allowed in (("/", "GET"), ("/style.css", "GET"), ("/api/mirror", "POST")):
            answer = send(served, method, path)
            assert refused(answer, 405, f"this address takes {allowed} alone")
            assert answer[1]["Allow"] == allowed
    assert refused(send(served, "GET", "/api/mirror"), 405, "takes POST alone")
    assert refused(send(served, "POST", "/", "{}"), 405, "takes GET alone")
    assert refused(send(served, "BREW", "/"), 405, "not allowed")


def test_bodies_that_are_too_large(served):
    for size in (server.LARGEST_BODY + 1, 5_000_000):
        answer = send(served, "POST", "/api/convolution", b"[" * size)
        assert refused(answer, 413, f"expected at most {server.LARGEST_BODY} bytes")
    claimed = send(served, "POST", "/api/convolution", "", {"Content-Length": "9" * 30})
    assert refused(claimed, 413, "too large")


def test_content_type_and_length(served):
    body = json.dumps(CONVOLUTION)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = send(served, "POST", "/api/convolution", body, {"Content-Type": kind}, plain=True)
        assert refused(answer, 415, "expected Content-Type: application/json")
    head = (
        f"POST /api/convolution HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n"
        "Content-Type: application/json; charset=utf-8\r\n"
    )
    for extra, status in (
        ("", b"411"),
        ("Transfer-Encoding: chunked\r\n", b"411"),
        ("Content-Length: -1\r\n", b"400"),
        ("Content-Length: two\r\n", b"400"),
        ("Content-Length: 2\r\nContent-Length: 3\r\n", b"400"),
        ("Content-Length: 100\r\n", b"400"),
    ):
        answer = raw(served, f"{head}{extra}\r\n{{}}".encode())
        assert answer.startswith(b"HTTP/1.0 " + status), answer
        assert answer.endswith(b"\n")
    assert b"ends after 2 bytes" in answer


def test_what_is_no_http(served):
    for data, status in (
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /\r\n", b"400"),
        (b"GET / HTTP/1.1 more\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70000 + b"\r\n\r\n", b"431"),
    ):
        answer = raw(served, data)
        assert answer.startswith(b"HTTP/1.0 " + status), answer[:200]
        assert b"<html" not in answer.lower()
        assert answer.partition(b"\r\n\r\n")[2].count(b"\n") == 1
    assert raw(served, b"") == b""
    assert send(served, "GET", "/about.json")[0] == 200


def test_other_hosts_are_refused(served):
    """A name that somebody has made to point here arrives with that name as Host."""
    port = served.port
    for host in (
        "evil.example", f"evil.example:{port}", "127.0.0.1", "localhost", f"127.0.0.1:{port + 1}",
        f"127.0.0.1.evil.example:{port}", f"127.0.0.2:{port}", "", f"localhost:{port}.", "[::1]",
    ):  # fmt: skip
        for method, path, body in (
            ("GET", "/", None), ("POST", "/api/mirror", "{}"), ("PUT", "/", None)
        ):  # fmt: skip
            answer = send(served, method, path, body, {"Host": host})
            assert refused(answer, 403, f"answers to http://127.0.0.1:{port}/ alone")
    answer = raw(served, b"GET / HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 400")
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    assert raw(served, b"GET / HTTP/1.1\r\n" + 2 * host + b"\r\n").startswith(b"HTTP/1.0 400")


def test_other_origins_are_refused(served):
    host = f"127.0.0.1:{served.port}"
    for origin in (
        "http://evil.example", "null", f"https://{host}", "http://127.0.0.1",
        f"http://localhost:{served.port}", f"http://{host}/", "",
    ):  # fmt: skip
        body = json.dumps(CONVOLUTION)
        answer = send(served, "POST", "/api/convolution", body, {"Origin": origin})
        assert refused(answer, 403, "other websites may not use this server")
        assert refused(
            send(served, "OPTIONS", "/api/mirror", None, {"Origin": origin}), 403, "other"
        )


def test_what_is_missing_and_what_is_broken(served, monkeypatch, capsys):
    def missing(fields):
        raise Unavailable("pip install something")

    def broken(fields):
        raise ZeroDivisionError

    computes = {"/api/mirror": missing, "/api/digits": broken}
    monkeypatch.setattr(served, "computes", computes)
    assert refused(send(served, "POST", "/api/mirror", "{}"), 503, "pip install something")
    assert capsys.readouterr().err == ""
    assert refused(send(served, "POST", "/api/digits", "{}"), 500, "see its terminal")
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_it_listens_on_loopback_alone(served):
    assert served.server_address[0] == "127.0.0.1"
    assert served.url == f"http://127.0.0.1:{served.port}/"
    with pytest.raises(OSError, match="in use"):
        server.Server(served.port, Digits(0), Attention(0))


def test_a_silent_connection_holds_nobody_up(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as silent:
        silent.sendall(b"POST /api/mirror HTTP/1.1\r\n")
        assert send(served, "GET", "/about.json")[0] == 200


# ---- the command ---------------------------------------------------------------------------------


def started(*arguments):
    # A shell's background jobs ignore Ctrl-C, and so would their children.
    return subprocess.Popen(
        [sys.executable, "-m", "fusednn", "explore", "--port", "0", "--no-browser", *arguments],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_serves_until_ctrl_c():
    with started("--threads", "1", "--seed", "3") as process:
        try:
            line = process.stdout.readline()
            url = re.match(r"(http://127\.0\.0\.1:\d+/)  \(Ctrl-C ends\)\n", line)[1]
            with urllib.request.urlopen(f"{url}about.json", timeout=20) as response:
                about = json.load(response)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert about["threads"] == 1
    assert "(seed 3)" in about["attention"]["text"]
    assert (process.returncode, out, err) == (0, "\n", "")


def test_a_port_that_is_taken(served, capsys):
    assert cli.main(["explore", "--port", str(served.port), "--no-browser"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"fusednn explore: --port {served.port}: ")
    assert err.endswith("(--port 0 takes a free one)\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--port", "http"), "argument --port: 'http' is not a whole number"),
        (("--port", "65536"), "argument --port: 65536 is not a port, expected 0 to 65535"),
        (("--port", "-1"), "argument --port: -1 is not a port"),
        (("--threads", "0"), "argument --threads: 0 is below 1"),
        (("--open", "--no-browser"), "not allowed with argument"),
        (("--checkpoint",), "expected one argument"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(arguments, text, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["explore", *arguments])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_a_checkpoint_that_is_none(tmp_path, capsys):
    for path in (tmp_path / "none", tmp_path):
        assert cli.main(["explore", "--port", "0", "--checkpoint", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"fusednn explore: --checkpoint {path}: ")
        assert err.count("\n") == 1


def test_a_browser_is_opened_where_asked(monkeypatch, capsys):
    opened = []

    def serve(self, poll_interval):
        raise KeyboardInterrupt  # what Ctrl-C does, at once

    monkeypatch.setattr(server.Server, "serve_forever", serve)
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)))
    assert cli.main(["explore", "--port", "0", "--no-browser"]) == 0
    assert cli.main(["explore", "--port", "0"]) == 0  # no terminal, no desktop
    assert opened == []
    assert cli.main(["explore", "--port", "0", "--open"]) == 0
    out, err = capsys.readouterr()
    assert opened == [out.splitlines()[-2].split()[0]]
    assert err == "there is no browser to open; the address above is the page\n"


def test_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "explore" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["explore", "--help"])
    out = capsys.readouterr().out
    for word in ("convolution", "mirror", "rotation", "digits", "attention", "--port", "Ctrl-C"):
        assert word in out

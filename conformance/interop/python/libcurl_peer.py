"""The libcurl that pycurl brings, newer than those of distributions: 5 MB to `wireloom serve`, also where nobody reads them."""

import io
import sys

import pycurl

BODY = bytes(range(256)) * 20_000
# The pages answer before they have read a body.
EXPECTED = {"/echo": (200, 413), "/": (405,), "/metrics": (405,), "/healthz": (405,), "/nothing": (404,)}


def post(url, version, is_stream):
    curl, received = pycurl.Curl(), io.BytesIO()
    curl.setopt(pycurl.URL, url)
    curl.setopt(pycurl.HTTP_VERSION, version)
    curl.setopt(pycurl.SSL_VERIFYPEER, 0)
    curl.setopt(pycurl.SSL_VERIFYHOST, 0)
    curl.setopt(pycurl.TIMEOUT, 60)
    curl.setopt(pycurl.WRITEDATA, received)
    curl.setopt(pycurl.POST, 1)
    if is_stream:
        curl.setopt(pycurl.READDATA, io.BytesIO(BODY))
    else:
        curl.setopt(pycurl.POSTFIELDS, BODY)
    curl.perform()
    status = curl.getinfo(pycurl.RESPONSE_CODE)
    curl.close()
    return status, received.getvalue()


def client(http, https):
    versions = {
        "HTTP/1.1": (http, pycurl.CURL_HTTP_VERSION_1_1),
        "HTTP/2 by prior knowledge": (http, pycurl.CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE),
        "HTTP/2 by Upgrade": (http, pycurl.CURL_HTTP_VERSION_2_0),
        "HTTP/1.1 over TLS": (https, pycurl.CURL_HTTP_VERSION_1_1),
        "HTTP/2 by ALPN": (https, pycurl.CURL_HTTP_VERSION_2_0),
    }
    for name, (base, version) in versions.items():
        for path, expected in EXPECTED.items():
            for is_stream in (False, True):
                status, received = post(base + path, version, is_stream)
                assert status in expected, (name, path, is_stream, status)
                assert status != 200 or received == BODY, (name, path, is_stream)


if __name__ == "__main__":
    client(*sys.argv[1:])

"""The registry: rows are checked, and a fetched file is either right or absent."""

import hashlib
import os
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.experiment.downloads import Dataset, download, load_registry

SHIPPED = Path(__file__).parents[3] / "resources" / "registry.csv"
HEADER = "dataset_id,version,url,sha256,licence,mirror_path,citation"
CONTENT = b"a,b\n1,2\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ROW = f"d,1,https://example.org/d.csv,{DIGEST},CC0,x/d.csv,nobody"


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    path = tmp_path / "mirror" / "x" / "d.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return Dataset("d", "1", path.as_uri(), DIGEST, "CC0", "x/d.csv", "nobody")


def _registry(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "registry.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_shipped_registry_names_traces_with_licence_and_citation():
    datasets = load_registry(SHIPPED)
    hashes = [dataset.sha256 for dataset in datasets.values()]
    assert len({*hashes}) == len(hashes)
    for dataset in datasets.values():
        assert dataset.sha256.endswith(".csv") or dataset.url.endswith("/" + dataset.file_name)
        assert dataset.citation[-4:].isdigit(), "a citation ends in its year"
    assert datasets["azure-2023-conv"].licence == "CC-BY-4.0"
    assert "Splitwise" in datasets["azure-2023-conv"].citation
    assert datasets["mooncake-conversation"].url.endswith("conversation_trace.jsonl")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b", "1,2"], r"registry\.csv, line 1, field 'a': unknown column"),
        ([HEADER, ROW.replace(",CC0,", ",,")], "line 2, field 'licence': it is missing"),
        ([HEADER, ROW, ROW], "line 3, field 'dataset_id': 'd' is already in line 2"),
        ([HEADER, ROW.replace(DIGEST, "abc")], "field 'sha256': 'abc' .*`sha256sum` prints"),
        ([HEADER, ROW.replace("x/d.csv", "../d.csv")], "'mirror_path': .*relative and"),
        (
            [HEADER, ROW.replace("https://example.org", "file:///etc")],
            "'url': .*address of the down",
        ),
        ([HEADER, ROW.replace("https:", "ftp:")], "'url': .*address of the download"),
        ([HEADER, "a\x1bb" + ROW[1:]], "field 'dataset_id': .* is not visible"),
        ([HEADER, ROW + ",more"], "line 2: 8 cells under 7 columns"),
    ],
)
def test_malformed_registry_is_refused(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        load_registry(_registry(tmp_path, *lines))


@pytest.mark.parametrize("with_mirror", [True, False])
def test_fetch_from_mirror_and_from_url(tmp_path, dataset, with_mirror):
    out = tmp_path / "new" / "out.csv"
    download(dataset, out, tmp_path / "mirror" if with_mirror else None)
    assert out.read_bytes() == CONTENT


@pytest.mark.parametrize("with_mirror", [True, False])
def test_wrong_bytes_leave_what_was_there(tmp_path, dataset, with_mirror):
    out = tmp_path / "out.csv"
    out.write_text("earlier")
    wrong = replace(dataset, sha256="0" * 64)
    with pytest.raises(InputError, match=f"SHA-256 is {DIGEST}"):
        download(wrong, out, tmp_path / "mirror" if with_mirror else None)
    assert out.read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mirror", "out.csv"]


def test_an_archive_with_a_manifest_is_left_to_its_import(tmp_path, dataset):
    row = ROW.replace(DIGEST, "resources/d/manifest.csv")
    assert not dataset.sha256.endswith(".csv")
    packed = load_registry(_registry(tmp_path, HEADER, row))["d"]
    assert packed.sha256.endswith(".csv")
    download(replace(packed, url=dataset.url), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == CONTENT


def test_file_absent_from_mirror(tmp_path, dataset):
    absent = replace(dataset, mirror_path="x/other.csv")
    with pytest.raises(InputError, match=r"x/other\.csv: the mirror has no d\."):
        download(absent, tmp_path / "out.csv", tmp_path / "mirror")


def test_a_server_cannot_send_a_client_to_a_file(tmp_path, dataset):
    class Redirect(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", dataset.url)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Redirect) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        moved = replace(dataset, url=f"http://127.0.0.1:{server.server_port}/d.csv")
        with pytest.raises(InputError, match="the download failed"):
            download(moved, tmp_path / "out.csv")
        server.shutdown()
    assert not (tmp_path / "out.csv").exists()


def test_a_download_that_does_not_end_is_given_up(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr("sextant.experiment.downloads.MAX_BYTES", 4)
    with pytest.raises(InputError, match=r"the download failed .*it has more than"):
        download(dataset, tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["mirror"]


@pytest.mark.skipif("SEXTANT_MIRROR" not in os.environ, reason="SEXTANT_MIRROR is not set")
@pytest.mark.parametrize("dataset_id", ["azure-2023-conv", "mooncake-conversation", "llm-pilot"])
def test_mirror_holds_the_registered_bytes(tmp_path, dataset_id):
    registered = load_registry(SHIPPED)[dataset_id]
    download(registered, tmp_path / "file", os.environ["SEXTANT_MIRROR"])
    assert (tmp_path / "file").stat().st_size > 100_000

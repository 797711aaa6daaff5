"""Pulling from a hub without faults: the choice of files, the pinned commit, the token, the room."""

from __future__ import annotations

import os
import shutil
import sys
import types

import pytest
from hub_server import REPO, FakeHub
from pull_fixtures import MAP, SHARDS, assert_manifest, held, pull, some_files

from kimistream.checkpoint.pull import Pull, Wanted
from kimistream.checkpoint.pull_patience import judge, told_wait
from kimistream.errors import CheckpointError, DownloadError, KimistreamError, OutputError, UsageError


@pytest.fixture(autouse=True)
def _no_outside(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub():
    hub = FakeHub(some_files())
    with hub.serve():
        yield hub


def test_every_file_arrives_with_its_bytes_and_a_manifest(hub, tmp_path):
    done = pull(hub.origin, tmp_path / "new" / "model")
    assert held(tmp_path / "new" / "model") == hub.files
    assert_manifest(tmp_path / "new" / "model", hub, set(hub.files))
    assert done.complete
    assert done.commit == hub.commit
    assert sorted(done.fetched) == sorted(hub.files)
    assert not list((tmp_path / "new" / "model").rglob("*.partial"))


def test_a_second_pull_downloads_nothing(hub, tmp_path):
    pull(hub.origin, tmp_path)
    before = len(hub.requests)
    done = pull(hub.origin, tmp_path)
    assert done.fetched == ()
    assert done.complete
    assert all("/resolve/" not in path and "/cdn/" not in path for _, path, _ in hub.requests[before:])


def test_only_text_leaves_out_the_vision_shard(hub, tmp_path):
    pull(hub.origin, tmp_path, only_text=True)
    assert set(held(tmp_path)) == set(hub.files) - {SHARDS[4]}
    assert_manifest(tmp_path, hub, set(hub.files) - {SHARDS[4]})


def test_layers_bring_their_shards_and_the_embedding(hub, tmp_path):
    done = pull(hub.origin, tmp_path, layers=(1, 2))
    assert set(held(tmp_path)) == set(hub.files) - {SHARDS[0], SHARDS[4]}
    assert not done.complete


def test_a_shard_with_text_and_vision_is_part_of_the_text(tmp_path):
    files = some_files()
    files["model.safetensors.index.json"] = files["model.safetensors.index.json"].replace(
        b"language_model.model.embed_tokens", b"vision_tower.extra"
    )
    with FakeHub(files).serve() as endpoint:
        pull(endpoint, tmp_path, only_text=True)
    assert SHARDS[3] in held(tmp_path)


def test_layers_beyond_the_last_are_refused_with_both_numbers(hub, tmp_path):
    with pytest.raises(UsageError, match=r"--layers 1-7: the model has the layers 0 to 2"):
        pull(hub.origin, tmp_path, layers=(1, 7))


def test_named_files_only(hub, tmp_path):
    pull(hub.origin, tmp_path, files=(SHARDS[1], "config.json"))
    assert set(held(tmp_path)) == {SHARDS[1], "config.json"}
    with pytest.raises(UsageError, match=r"--files nothing.bin: the repository holds no such file"):
        pull(hub.origin, tmp_path, files=("nothing.bin",))


def test_a_named_file_is_checked_again_even_if_it_was_right(hub, tmp_path):
    pull(hub.origin, tmp_path)
    path = tmp_path / SHARDS[2]
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a bit that rots leaves it
    assert pull(hub.origin, tmp_path).fetched == ()
    assert pull(hub.origin, tmp_path, files=(SHARDS[2],)).fetched == (SHARDS[2],)
    assert held(tmp_path) == hub.files


def test_files_that_another_tool_fetched_are_checked_and_kept(hub, tmp_path):
    for name, data in hub.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    done = pull(hub.origin, tmp_path)
    assert done.fetched == ()
    assert hub.sent == 0
    assert_manifest(tmp_path, hub, set(hub.files))


def test_a_shard_cut_by_one_byte_costs_one_byte(hub, tmp_path):
    pull(hub.origin, tmp_path)
    path = tmp_path / SHARDS[0]
    os.truncate(path, path.stat().st_size - 1)
    sent = hub.sent
    notes: list[str] = []
    done = pull(hub.origin, tmp_path, notes=notes)
    assert done.fetched == (SHARDS[0],)
    assert hub.sent - sent == 1
    size = len(hub.files[SHARDS[0]])
    assert any(f"{size - 1:,} of {size:,} bytes" in note for note in notes)
    assert held(tmp_path) == hub.files


def test_a_deleted_and_a_lengthened_file_are_made_right(hub, tmp_path):
    pull(hub.origin, tmp_path)
    (tmp_path / SHARDS[0]).unlink()
    with (tmp_path / SHARDS[1]).open("ab") as file:
        file.write(b"x")
    assert sorted(pull(hub.origin, tmp_path).fetched) == SHARDS[:2]
    assert held(tmp_path) == hub.files


def test_a_link_into_a_cache_is_never_written_through(hub, tmp_path):
    cache = tmp_path / "cache.bin"
    cache.write_bytes(hub.files[SHARDS[0]][:-10])
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / SHARDS[0]).symlink_to(cache)
    pull(hub.origin, directory)
    assert held(directory) == hub.files
    assert cache.read_bytes() == hub.files[SHARDS[0]][:-10]


def test_a_resumed_pull_stays_with_its_commit(hub, tmp_path):
    old, commit = dict(hub.files), hub.commit
    pull(hub.origin, tmp_path, files=("config.json",))
    hub.new_commit(some_files(seed=9))
    assert pull(hub.origin, tmp_path).commit == commit
    assert held(tmp_path) == old


def test_another_revision_is_refused_with_both_named(hub, tmp_path):
    commit = hub.commit
    hub.revisions["v2"] = hub.commit
    pull(hub.origin, tmp_path, files=("config.json",))
    with pytest.raises(
        UsageError, match=rf"holds revision main \({commit}\).*asked for: --revision v2"
    ) as info:
        pull(hub.origin, tmp_path, revision="v2")
    assert "pull.json" in info.value.remedy
    assert pull(hub.origin, tmp_path, revision=commit).commit == commit
    with pytest.raises(UsageError, match="holds files of owner/model; asked for: owner/other"):
        pull(hub.origin, tmp_path, repo="owner/other")


def test_after_deleting_the_pin_the_new_revision_replaces_what_differs(hub, tmp_path):
    pull(hub.origin, tmp_path)
    hub.new_commit(hub.files | {SHARDS[1]: b"new" * 40_000})
    (tmp_path / ".kimistream" / "pull.json").unlink()
    assert pull(hub.origin, tmp_path).fetched == (SHARDS[1],)
    assert held(tmp_path) == hub.files


def test_a_directory_with_another_model_is_left_alone(hub, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(UsageError, match=r"is not the config\.json of owner/model"):
        pull(hub.origin, tmp_path)
    assert held(tmp_path) == {"config.json": b'{"model_type": "other"}'}


def test_a_disk_without_room_is_refused_first_with_both_figures(hub, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=65_000_000))
    with pytest.raises(OutputError, match=r"has room for 65.0 MB; needed: 67.9 MB"):
        pull(hub.origin, tmp_path)
    assert hub.sent == 0


def test_what_is_there_already_needs_no_room(hub, tmp_path, monkeypatch):
    pull(hub.origin, tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert pull(hub.origin, tmp_path).complete


def test_the_token_goes_to_the_hub_only_and_is_never_shown(hub, tmp_path, monkeypatch):
    hub.token = "hf_SecretSecret123"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    notes: list[str] = []
    pull(hub.origin, tmp_path, notes=notes)
    assert held(tmp_path) == hub.files
    at_cdn = [h for _, path, h in hub.requests if path.startswith("/cdn/")]
    assert at_cdn
    assert all("authorization" not in headers for headers in at_cdn)
    monkeypatch.setenv("HF_TOKEN", "hf_WrongWrongWrong")
    with pytest.raises(DownloadError) as info:
        pull(hub.origin, tmp_path / "other", notes=notes)
    assert "hf auth login" in info.value.remedy
    for text in [str(info.value), *notes, *(p.read_text("latin1") for p in tmp_path.rglob("*.json"))]:
        assert "Secret" not in text
        assert "WrongWrong" not in text
    assert not (tmp_path / "other").exists()


def test_the_endpoint_comes_from_the_environment(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.origin + "/")
    pull(None, tmp_path, files=("config.json",))
    assert held(tmp_path) == {"config.json": hub.files["config.json"]}
    monkeypatch.setenv("HF_ENDPOINT", "not an address")
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        Pull(tmp_path, Wanted(REPO))


@pytest.mark.parametrize(
    ("repo", "revision", "error", "text"),
    [
        ("owner/nothing", None, DownloadError, "has no repository owner/nothing"),
        (REPO, "no-such-branch", DownloadError, "knows no such revision"),
        ("not a name", None, UsageError, "is not the name of a repository"),
    ],
)
def test_a_name_that_the_hub_does_not_know_is_refused(hub, tmp_path, repo, revision, error, text):
    with pytest.raises(error, match=text):
        pull(hub.origin, tmp_path / "x", repo=repo, revision=revision)
    assert len(hub.requests) <= 1
    assert not (tmp_path / "x").exists()


def test_names_that_leave_the_directory_are_refused(tmp_path):
    for name in ("../evil.txt", "/etc/evil", "a/../../evil", "a\\b"):
        hub = FakeHub(some_files() | {name: b"evil"})
        with hub.serve() as endpoint, pytest.raises(DownloadError, match="no usable file name"):
            pull(endpoint, tmp_path / "model")
    assert not list(tmp_path.rglob("*evil*"))


def test_two_pulls_into_one_directory_do_not_meet(hub, tmp_path):
    first = Pull(tmp_path, Wanted(REPO), endpoint=hub.origin)
    first._state.open()
    with pytest.raises(KimistreamError, match="another kimistream pull is at work"):
        pull(hub.origin, tmp_path)
    first._state.close()
    assert pull(hub.origin, tmp_path).complete


def test_a_damaged_memory_of_the_pull_is_said(hub, tmp_path):
    pull(hub.origin, tmp_path)
    (tmp_path / ".kimistream" / "pull.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not valid") as info:
        pull(hub.origin, tmp_path)
    assert "Delete it" in info.value.remedy


def test_workers_bound_the_downloads_at_once(tmp_path):
    hub = FakeHub(some_files())
    hub.delay = 0.01
    with hub.serve() as endpoint:
        pull(endpoint, tmp_path, workers=2)
    assert hub.most_downloading == 2
    for workers in (0, 65):
        with pytest.raises(UsageError, match=f"--workers {workers}: must be 1 to 64"):
            Pull(tmp_path, Wanted(REPO), workers=workers)


class _FakeXet(types.ModuleType):
    """Stands for hf_xet: gives the bytes of a hub's files by their hash, or fails."""

    def __init__(self, files: dict[str, bytes], fail: bool) -> None:
        super().__init__("hf_xet")
        self.starts: list[int] = []
        module = self

        class XetFileInfo:
            def __init__(self, hash_: str, size: int) -> None:
                self.hash, self.size = hash_, size

        class Stream:
            def __init__(self, data: bytes) -> None:
                self.data, self.cancelled = data, False

            def cancel(self) -> None:
                self.cancelled = True

            def __iter__(self):
                for at in range(0, len(self.data), 10_000):
                    if fail and at >= 20_000:
                        raise RuntimeError("storage said hf_SecretSecret1 https://x/y?sig=abc")
                    yield self.data[at : at + 10_000]

        class Group:
            def download_stream(self, info, start=None, end=None):
                module.starts.append(start)
                return Stream(files[info.hash][start:])

            def abort(self) -> None:
                pass

        class XetSession:
            def new_download_stream_group(self, **options):
                assert options["token_refresh_url"].endswith(f"/xet-read-token/{module.commit}")
                assert "authorization" not in {name.lower() for name in options["custom_headers"]}
                return Group()

        self.XetFileInfo, self.XetSession = XetFileInfo, XetSession


@pytest.mark.parametrize("fail", [False, True])
def test_the_fast_transfer_is_used_and_plain_https_takes_over(hub, tmp_path, monkeypatch, fail):
    from kimistream.checkpoint.pull_hub import Hub, RemoteFile

    def with_hash(self, commit, patience, files_of=Hub.files_of):
        return [
            RemoteFile(f.name, f.size, f.sha256, f.blob, f"xet-{f.name}" if f.sha256 else None)
            for f in files_of(self, commit, patience)
        ]

    monkeypatch.setattr(Hub, "files_of", with_hash)
    xet = _FakeXet({f"xet-{name}": data for name, data in hub.files.items()}, fail)
    xet.commit = hub.commit
    monkeypatch.setitem(sys.modules, "hf_xet", xet)
    monkeypatch.delenv("HF_HUB_DISABLE_XET", raising=False)
    notes: list[str] = []
    pull(hub.origin, tmp_path, notes=notes)
    assert held(tmp_path) == hub.files
    plain = sum(1 for _, path, _ in hub.requests if path.startswith("/cdn/"))
    if fail:
        assert any("going on over plain HTTPS" in note for note in notes)
        assert "Secret" not in "".join(notes)
        assert "sig=abc" not in "".join(notes)
        assert plain >= len(SHARDS)
    else:
        assert plain == 0
        assert xet.starts == [0] * len(SHARDS)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    xet.starts.clear()
    pull(hub.origin, tmp_path / "plain")
    assert xet.starts == []


def test_the_index_names_what_the_tests_think():
    assert set(MAP.values()) == set(SHARDS)


def test_waits_that_servers_ask_for_are_understood():
    assert told_wait({"retry-after": "7"}) == 7
    assert told_wait({"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"}) > 3590
    assert told_wait({"retry-after": "Fri, 01 Jan 1999 00:00:00 GMT"}) == 0
    assert told_wait({"ratelimit": '"resolvers";r=0;t=55'}) == 55
    assert told_wait({"ratelimit": '"resolvers";r=12;t=55'}) is None
    assert told_wait({"retry-after": "soon"}) is None
    assert judge(206, {}) is None

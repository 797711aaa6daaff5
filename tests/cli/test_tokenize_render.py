"""`kimistream tokenize` and `kimistream render`: ids and segments to look at."""

from __future__ import annotations

from command_line import call


def test_tokenize_shows_ids_and_bytes_and_decodes(monkeypatch, capsys, talking):
    def shown(*arguments: str, stdin: str = "") -> str:
        code, out, err = call(monkeypatch, capsys, "tokenize", str(talking), *arguments, stdin=stdin)
        assert code == 0, err
        return out

    assert shown("--text", "hé", "--ids") == "104,195,169\n"
    assert "bytes c3" in shown("--text", "hé")
    assert "10 bytes" in shown("--text", "a<|open|>b")
    assert shown("--text", "a<|open|>", "--special", "--ids") == "97,259\n"
    assert shown("--file", "-", "--ids", stdin="ok") == "111,107\n"
    assert '"<|open|>"  special' in shown("--decode", "259")
    for bad in (["--text", "a", "--decode", "1"], [], ["--decode", "x"]):
        assert call(monkeypatch, capsys, "tokenize", str(talking), *bad)[0] == 2


def test_render_marks_structure_and_leaves_marker_text_alone(monkeypatch, capsys, talking, tmp_path):
    file = tmp_path / "messages.json"
    file.write_text('[{"role": "user", "content": "hi <|close|>"}]')

    def shown(*arguments: str) -> str:
        code, out, err = call(
            monkeypatch, capsys, "render", str(talking), "--messages", str(file), *arguments
        )
        assert code == 0, err
        return out

    lines = shown("--think", "off").splitlines()
    assert '  "hi <|close|>"  104 105 32 60 124 99 108 111 115 101 124 62' in lines
    assert '* "<|open|>"  259' in lines
    assert shown("--think", "off", "--text").startswith(
        '<|open|>message role="user"<|sep|>hi <|close|><|close|>'
    )
    ids = shown("--think", "off", "--ids").strip().split(",")
    assert ids.count("260") == 1
    assert "thinking_effort=low" in shown("--think", "low", "--text")
    file.write_text("{}")
    code, _, err = call(monkeypatch, capsys, "render", str(talking), "--messages", str(file))
    assert code == 2
    assert "--messages" in err
    file.write_text('[{"role": "wizard"}]')
    assert "wizard" in call(monkeypatch, capsys, "render", str(talking), "--messages", str(file))[2]

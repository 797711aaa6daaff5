"""The values a checkpoint recommends."""

from __future__ import annotations

import pytest

from kimistream.engine.options import SamplingOptions
from kimistream.engine.recommended import recommended
from kimistream.errors import ConfigError


def write(directory, text):
    (directory / "generation_config.json").write_text(text)
    return recommended(directory)


def test_a_checkpoint_without_the_file_recommends_nothing(tmp_path):
    assert recommended(tmp_path) == {}


def test_sampling_fields_are_taken_and_others_left(tmp_path):
    got = write(
        tmp_path, '{"temperature": 1.0, "top_p": 0.95, "top_k": 50, "eos_token_id": 163586, "min_p": null}'
    )
    assert got == {"temperature": 1.0, "top_p": 0.95, "top_k": 50}
    assert SamplingOptions.of(got).top_p == 0.95


def test_no_sampling_is_greedy(tmp_path):
    assert write(tmp_path, '{"do_sample": false, "temperature": 0.7}') == {"temperature": 0.0}


@pytest.mark.parametrize("text", ['{"top_p": 7}', '{"temperature": "hot"}', '{"temp', "[1]", "\x00"])
def test_a_file_that_makes_no_sense_is_refused_by_name(tmp_path, text):
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        write(tmp_path, text)

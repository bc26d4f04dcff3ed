"""Files of the form for programs, packed as an archive."""

import io
import zipfile

import pytest

from dashboard.pages.new_program import beside, packed_texts
from trainyard.errors import BadInput


def test_all_files_are_in_the_archive_with_plain_line_ends() -> None:
    packed = packed_texts("main.py", {"main.py": "a\r\nb\r\n", "parts/x.py": "", ".config": "1"})
    assert sorted(packed.paths) == [".config", "main.py", "parts/x.py"]
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert archive.read("main.py") == b"a\nb\n"


@pytest.mark.parametrize(
    "path", ["", ".", "/", "..", "../x.py", "parts/../../x.py", "/etc/x.py", "a\0b", "x" * 300]
)
def test_a_path_that_leaves_the_folder_is_refused_by_name(path: str) -> None:
    with pytest.raises(BadInput, match=r"path below|cannot be a file"):
        packed_texts("main.py", {"main.py": "print()", path: "1"})


def test_a_file_below_a_file_is_refused() -> None:
    with pytest.raises(BadInput, match=r"'main.py/x' cannot be a file"):
        packed_texts("main.py", {"main.py": "print()", "main.py/x": "1"})


@pytest.mark.parametrize(("entry", "text"), [("", "print()"), ("main.py", " ")])
def test_the_file_to_run_has_a_name_and_a_text(entry: str, text: str) -> None:
    with pytest.raises(BadInput, match="file to run"):
        packed_texts(entry, {entry: text})


def test_paths_and_texts_of_a_form_belong_together_in_order() -> None:
    fields = [("path", "a.py"), ("content", "A"), ("name", "x"), ("path", "b.py"), ("content", "B")]
    assert beside(fields) == {"a.py": "A", "b.py": "B"}

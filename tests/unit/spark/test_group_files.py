"""The names of the files and directories of a group: no id reaches those of another one."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from share_spark.delivery.ledger_place import LedgerPlace
from share_spark.delta.journal import Journal
from share_spark.maintenance.operator_files import OperatorFile
from share_spark.model.ids import BatchStamp
from share_spark.spark.files import group_file_name
from share_spark.spark.public_files import LocalFiles

ID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400)


@given(ID, ID)
def test_each_id_has_a_name_of_its_own_that_a_file_system_takes(one: str, other: str) -> None:
    name = group_file_name(one)
    assert name not in (".", "..")
    assert "/" not in name
    assert len(name.encode()) <= 200
    assert (name == group_file_name(other)) is (one == other)


def test_names_are_what_they_were() -> None:
    assert [group_file_name(text) for text in ("billing", "a/b", "a b", "ä", "a.b~c")] == [
        "billing",
        "a%2Fb",
        "a%20b",
        "%C3%A4",
        "a.b~c",
    ]


def test_groups_of_dots_stay_among_themselves(tmp_path: Path) -> None:
    table = str(tmp_path / "log")
    journals = {group: Journal(None, table, "output", group) for group in (".", "..", "billing")}
    for number, journal in enumerate(journals.values()):
        journal.put(BatchStamp(1, number), b"")
    assert [journal.stamps() for journal in journals.values()] == [[(1, 0)], [(1, 1)], [(1, 2)]]
    files = {group: OperatorFile.beside(table, "paused", group, LocalFiles()) for group in (".", "..")}
    for group, file in files.items():
        file.write(group)
    assert [file.read() for file in files.values()] == [b'"."', b'".."']
    places = {
        group: LedgerPlace.beside(table, "id", group, "member", one_machine=True) for group in (".", "..", "billing")
    }
    for place in places.values():
        place.start()
    assert [place.all_others() for place in places.values()] == [[], [], []]
    places[".."].forget(["member"])
    assert [(place._group_directory() / "member").exists() for place in places.values()] == [True, False, True]

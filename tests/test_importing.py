"""Scripts without a main guard that are imported: what loads data meanwhile is not done again by workers."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import scripts

from aioload import Writer

IMPORTED = {
    "Loader": """
        import aioload, dataclasses

        @dataclasses.dataclass
        class Pair:
            n: int
            m: int

        def twice(sample):
            return Pair(sample["n"], 2 * sample["n"])

        with aioload.Loader("set", batch_size=4, transform=twice, num_workers=1).sync() as batches:
            for batch in batches:
                print(type(batch) is Pair, batch.m.tolist())
    """,
    "from_dataset": """
        import aioload

        class Pairs:
            def __len__(self): return 4
            def __getitem__(self, number): return 2 * number

        with aioload.from_dataset(Pairs(), batch_size=4, num_workers=1).sync() as batches:
            for batch in batches:
                print(True, batch.tolist())
    """,
    "map": """
        import aioload

        def twice(sample):
            return {"m": 2 * sample["n"]}

        aioload.map("set", twice, "mapped")
        print(True, [record["m"] for record in map(aioload.Dataset("mapped").__getitem__, range(4))])
    """,
}


@pytest.mark.parametrize("name", IMPORTED)
def test_a_script_that_is_imported_needs_no_guard(tmp_path: Path, name: str) -> None:
    """What it defines reaches the workers without its import: nothing hangs, nothing runs twice."""
    with Writer(tmp_path / "set", fields={"n": "int"}) as writer:
        for number in range(4):
            writer.write({"n": number})
    package = tmp_path / "training"
    package.mkdir()
    (package / "__init__.py").write_text("from . import script\n")
    (package / "script.py").write_text(textwrap.dedent(IMPORTED[name]))

    ended = scripts.run("import training", folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == ["True [0, 2, 4, 6]"]

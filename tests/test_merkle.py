from __future__ import annotations

from hashlib import sha256

import pytest

from bernstein.seal import merkle

# The roots of the first leaves of the reference tests of certificate transparency.
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def hashes(count: int) -> list[bytes]:
    return [merkle.leaf_hash(str(n).encode()) for n in range(count)]


@pytest.mark.parametrize(("count", "root"), ROOTS.items())
def test_the_roots_are_those_of_the_reference(count: int, root: str) -> None:
    assert merkle.root([merkle.leaf_hash(leaf) for leaf in LEAVES[:count]]).hex() == root


def test_the_empty_tree_has_the_hash_of_nothing() -> None:
    assert merkle.root([]) == sha256(b"").digest()


def test_every_leaf_of_every_small_tree_is_proved_and_nothing_else_is() -> None:
    for size in range(1, 20):
        leaves = hashes(size)
        root = merkle.root(leaves)
        for index in range(size):
            path = merkle.prove_inclusion(leaves, index)
            assert merkle.check_inclusion(leaves[index], index, size, path, root)
            for other in range(-1, size + 2):
                if other != index:
                    assert not merkle.check_inclusion(leaves[index], other, size, path, root)
            assert not merkle.check_inclusion(merkle.leaf_hash(b"x"), index, size, path, root)
            assert not merkle.check_inclusion(leaves[index], index, size, [*path, root], root)
            for cut in range(len(path)):
                changed = [*path[:cut], root, *path[cut + 1 :]]
                assert not merkle.check_inclusion(leaves[index], index, size, changed, root)
                assert not merkle.check_inclusion(leaves[index], index, size, path[:cut], root)


def test_every_older_tree_is_proved_and_a_rewritten_one_is_not() -> None:
    for size in range(1, 20):
        leaves = hashes(size)
        root = merkle.root(leaves)
        for old in range(1, size + 1):
            path = merkle.prove_consistency(leaves, old)
            assert merkle.check_consistency(old, merkle.root(leaves[:old]), size, root, path)
            rewritten = [merkle.leaf_hash(b"x"), *leaves[1:old]]
            assert not merkle.check_consistency(old, merkle.root(rewritten), size, root, path)
            assert not merkle.check_consistency(
                old, merkle.root(leaves[:old]), size, root, [*path, root]
            )
            for cut in range(len(path)):
                assert not merkle.check_consistency(
                    old, merkle.root(leaves[:old]), size, root, path[:cut]
                )
        assert merkle.check_consistency(0, merkle.root([]), size, root, [])
